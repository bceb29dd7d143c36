//! A page with plots and tables: static files that need no network.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

use crate::case::{Case, Setting};
use crate::figure::Figure;
use crate::goals::{self, GOALS};
use crate::plot::{self, Series};
use crate::row::{self, Row};

const STYLE: &str = "\
body { font: 16px/1.5 sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h2 { margin-top: 3rem; border-top: 1px solid #ccc; padding-top: 1rem }
h3 { font-size: 1rem; margin-bottom: 0 }
img { max-width: 100% }
table { border-collapse: collapse; font-size: 0.9rem; margin: 1rem 0 }
th, td { padding: 0.15rem 0.7rem; text-align: right; border-bottom: 1px solid #eee }
th:first-child, td:first-child, .words td, .words th { text-align: left }
tr.ours { font-weight: bold }
";

/// Write `index.html` with its plots, `goals.md` and `rows.json`.
pub(crate) fn write(directory: &Path, cases: &[&Case], rows: &[Row]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::write(directory.join("goals.md"), goals::markdown(rows))?;
    let lines: String = rows.iter().map(|row| format!("{}\n", row.json())).collect();
    fs::write(directory.join("rows.json"), lines)?;

    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <title>socknotify: measurements</title>\n<style>\n{STYLE}</style>\n\
         <h1>socknotify: measurements</h1>\n<p>{}. Medians of the rounds; quartiles are those of the figure that the ratio is of. \
         Ratios are to the first row. \
         Ratios within one run are what counts: absolute figures are the machine's.</p>\n",
        machine()
    );
    page += &goals_table(rows);
    for case in cases {
        let rows: Vec<_> = rows.iter().filter(|row| row.case == case.name).collect();
        page += &section(directory, case, &rows)?;
    }
    fs::write(directory.join("index.html"), page)
}

/// "2 processors, Linux 6.18".
fn machine() -> String {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let system = rustix::system::uname();
    let (name, release) = (system.sysname(), system.release());
    let release = release.to_string_lossy();
    let release = release.split('-').next().unwrap_or_default();
    format!(
        "{processors} processors, {} {release}",
        name.to_string_lossy()
    )
}

fn goals_table(rows: &[Row]) -> String {
    let mut table = String::from(
        "<h2>Goals</h2>\n<table class=\"words\">\
         <tr><th>case<th>against<th>goal<th>measured\n",
    );
    for goal in &GOALS {
        let measured = goal.measured(rows).unwrap_or_else(|| "not run".to_owned());
        let cells = [goal.case, goal.against, goal.goal, &measured];
        let cells: String = cells.map(|it| format!("<td>{}", escaped(it))).concat();
        table += &format!("<tr>{cells}\n");
    }
    table + "</table>\n"
}

/// A plot for each setting of all but the last axis, and below it the tables.
fn section(directory: &Path, case: &Case, rows: &[&Row]) -> io::Result<String> {
    let mut section = format!(
        "<h2 id=\"{0}\">{0}</h2>\n<p>{1}.</p>\n",
        case.name,
        escaped(case.about)
    );
    let Some(axis) = case.axes.last() else {
        return Ok(section);
    };
    let facets = distinct(rows.iter().map(|row| row.setting.without(axis.parameter)));
    for (number, facet) in facets.iter().enumerate() {
        let rows: Vec<_> = rows
            .iter()
            .filter(|row| row.setting.without(axis.parameter) == *facet)
            .copied()
            .collect();
        let values = distinct(rows.iter().map(|row| row.setting.get(axis.parameter)));
        if facet.iter().next().is_some() {
            writeln!(section, "<h3>{facet}</h3>").expect("memory takes it");
        }
        if let Some(figure) = plotted(case, &rows) {
            let name = format!("{}-{number}.svg", case.name);
            let path = directory.join(&name);
            let series = series(&rows, figure, |row| {
                let value = row.setting.get(axis.parameter);
                values.iter().position(|&it| it == value)
            });
            match &*values {
                [_] => plot::bars(&path, figure, &series),
                _ => plot::lines(&path, axis.parameter, &values, figure, &series),
            }
            .map_err(|error| io::Error::other(error.to_string()))?;
            writeln!(section, "<p><img src=\"{name}\" alt=\"\"></p>").expect("memory takes it");
        }
        for setting in distinct(rows.iter().map(|row| row.setting.clone())) {
            let rows = rows.iter().filter(|row| row.setting == setting);
            let rows: Vec<_> = rows.copied().collect();
            section += &table(case, &setting, &rows);
        }
    }
    Ok(section)
}

/// What a case is compared by; in a run that only counts, system calls.
fn plotted(case: &Case, rows: &[&Row]) -> Option<Figure> {
    let is_there = |figure: &Figure| rows.iter().any(|row| row.get(*figure).is_some());
    [case.compared_by, Figure::SystemCalls]
        .into_iter()
        .find(is_there)
}

fn series(rows: &[&Row], figure: Figure, place: impl Fn(&Row) -> Option<usize>) -> Vec<Series> {
    let implementations = distinct(rows.iter().map(|row| row.implementation));
    let series = implementations.into_iter().map(|implementation| {
        let rows = rows
            .iter()
            .filter(|row| row.implementation == implementation);
        Series {
            implementation,
            points: rows
                .filter_map(|row| Some((place(row)?, row.get(figure)?)))
                .collect(),
        }
    });
    series.filter(|series| !series.points.is_empty()).collect()
}

fn table(case: &Case, setting: &Setting, rows: &[&Row]) -> String {
    let columns = row::columns(rows.iter().copied());
    let mut table = format!("<table><tr><th>{setting}");
    for column in &columns {
        write!(table, "<th>{}", column.heading()).expect("memory takes it");
    }
    table += "<th>quartiles<th>ratio\n";
    for row in rows {
        let class = match row.implementation.is_ours() {
            true => " class=\"ours\"",
            false => "",
        };
        write!(table, "<tr{class}><td>{}", row.implementation).expect("memory takes it");
        for &column in &columns {
            let value = row.get(column);
            let value = value.map(|it| column.show(it));
            write!(table, "<td>{}", value.unwrap_or_default()).expect("memory takes it");
        }
        let spread = row.show_spread(case.compared_by);
        write!(table, "<td>{}", spread.unwrap_or_default()).expect("memory takes it");
        let ratio = row.ratio.map(|it| format!("{it:.2}"));
        writeln!(table, "<td>{}", ratio.unwrap_or_default()).expect("memory takes it");
    }
    table + "</table>\n"
}

/// Each once, in the order in which they come first.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for value in values {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
