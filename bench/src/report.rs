//! A page with plots and tables: static files that need no network.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

use crate::case::{Case, Parameter, Setting};
use crate::environment::Environment;
use crate::figure::Figure;
use crate::goals::{self, GOALS};
use crate::plot::{self, Point, Series};
use crate::readme;
use crate::row::{self, Row};

const STYLE: &str = "\
body { font: 16px/1.5 sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h2 { margin-top: 3rem; border-top: 1px solid #ccc; padding-top: 1rem }
h3 { font-size: 1rem; margin-bottom: 0 }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem }
dd { margin: 0; overflow-wrap: anywhere }
/* What is wider than the window scrolls by itself. */
.wide { overflow-x: auto; margin: 1rem 0 }
.wide img { min-width: 44rem; width: 100%; display: block }
table { border-collapse: collapse; font-size: 0.9rem }
th, td { padding: 0.15rem 0.7rem; text-align: right; border-bottom: 1px solid #eee; white-space: nowrap }
th:first-child, td:first-child, .words td, .words th { text-align: left }
.words td { white-space: normal; vertical-align: top; min-width: 7rem }
tr.ours { font-weight: bold }
.met { color: #17692b } .missed { color: #a3191f }
details { color: #666 }
picture img { max-width: 100%; height: auto }
";

/// Write `index.html` with its plots, `goals.md`, `rows.json` and `run.json`.
pub(crate) fn write(
    directory: &Path,
    environment: &Environment,
    cases: &[&Case],
    rows: &[Row],
) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::write(directory.join("goals.md"), goals::markdown(rows))?;
    write_rows(directory, rows)?;
    write_run(directory, environment)?;
    let pictures = readme::write_pictures(directory, rows, environment.json())?;

    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>socknotify: measurements</title>\n<style>\n{STYLE}</style>\n\
         <h1>socknotify: measurements</h1>\n{pictures}{}\
         <p>Figures are medians of the rounds. The quartiles, also the thin lines in the plots, are of the figure that \
         the ratio is of. Ratios are to the first row. A ratio with ≈ says nothing: its quartiles and those of the \
         first row overlap, so the spread between rounds is larger than the difference. Compare ratios within \
         one run, because absolute figures depend on the machine.</p>\n",
        run(environment)
    );
    let links = cases
        .iter()
        .map(|case| format!("<a href=\"#{0}\">{0}</a>", case.name));
    page += &format!("<p>{}</p>\n", links.collect::<Vec<_>>().join(" · "));
    page += &goals_table(cases, rows);
    for case in cases {
        let rows: Vec<_> = rows.iter().filter(|row| row.case == case.name).collect();
        page += &section(directory, case, &rows)?;
    }
    fs::write(directory.join("index.html"), page)
}

pub(crate) fn write_rows(directory: &Path, rows: &[Row]) -> io::Result<()> {
    let lines: String = rows.iter().map(|row| format!("{}\n", row.json())).collect();
    fs::write(directory.join("rows.json"), lines)
}

pub(crate) fn write_run(directory: &Path, environment: &Environment) -> io::Result<()> {
    let run = format!("{}\n", environment.json());
    fs::write(directory.join("run.json"), run)
}

/// When, where and how it was made.
fn run(environment: &Environment) -> String {
    let entries = environment.entries().into_iter();
    let entries = entries.map(|(name, value)| format!("<dt>{name}<dd>{}\n", escaped(value)));
    format!("<dl>\n{}</dl>\n", entries.collect::<String>())
}

/// Those that were run, and the names of the others.
fn goals_table(cases: &[&Case], rows: &[Row]) -> String {
    let (mut table, mut others) = (String::new(), String::new());
    for goal in &GOALS {
        let section = goal.measure.case;
        let case = match cases.iter().any(|case| case.name == section) {
            true => format!("<a href=\"#{section}\">{}</a>", escaped(goal.case)),
            false => escaped(goal.case),
        };
        let against = escaped(goal.against);
        let Some(result) = goal.result(rows) else {
            writeln!(others, "<li>{case}, to {against}").expect("memory takes it");
            continue;
        };
        let class = result.split(' ').next().unwrap_or_default();
        writeln!(
            table,
            "<tr><td>{case}<td class=\"{class}\">{result}<td>{}<td>{}<td>{against}",
            goal.limits(),
            goal.measured(rows),
        )
        .expect("memory takes it");
    }
    if !others.is_empty() {
        others = format!(
            "<details><summary>Goals that were not run</summary><ul>\n{others}</ul></details>\n"
        );
    }
    match table.is_empty() {
        true => others,
        false => format!(
            "<h2>Goals</h2>\n<div class=\"wide\"><table class=\"words\">\
             <tr><th>case<th>result<th>goal<th>measured<th>against\n{table}</table></div>\n{others}"
        ),
    }
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
            let text = alternative(case, axis.parameter, figure, &series);
            writeln!(
                section,
                "<div class=\"wide\"><img src=\"{name}\" alt=\"{text}\"></div>"
            )
            .expect("memory takes it");
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
                .filter_map(|row| {
                    let value = row.get(figure)?;
                    Some(Point {
                        place: place(row)?,
                        value,
                        range: row.spread.get(&figure).copied().unwrap_or([value; 2]),
                    })
                })
                .collect(),
        }
    });
    series.filter(|series| !series.points.is_empty()).collect()
}

/// What a plot shows, for readers who cannot see it. The tables below it have the values.
fn alternative(case: &Case, parameter: Parameter, figure: Figure, series: &[Series]) -> String {
    let series = series.iter().filter_map(|it| {
        let [least, most] =
            [f64::min, f64::max].map(|pick| it.points.iter().map(|point| point.value).reduce(pick));
        let (least, most) = (figure.show(least?), figure.show(most?));
        Some(match least == most {
            true => format!("{} {least}", it.implementation),
            false => format!("{} {least} to {most}", it.implementation),
        })
    });
    let series: Vec<_> = series.collect();
    format!(
        "{}: {} by {}. {}.",
        case.name,
        figure.unit(),
        parameter.unit(),
        series.join("; ")
    )
}

fn table(case: &Case, setting: &Setting, rows: &[&Row]) -> String {
    let columns = row::columns(rows.iter().copied());
    let mut table = format!("<div class=\"wide\"><table><tr><th>{setting}");
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
        writeln!(table, "<td>{}", row.show_ratio().unwrap_or_default()).expect("memory takes it");
    }
    table + "</table></div>\n"
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
