//! Pictures of the documents: bars of requests per second, in groups, for a light and for a dark page.

use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

use super::Report;
use super::tables::{ASYNC, KEYS, OWNED, SERVE, wrapped};
use crate::figure::{Figure, grouped};
use crate::implementation::Implementation;

/// Bars of each side in each group, relative to one of the sides in that group.
pub(super) struct Picture {
    name: &'static str,
    title: &'static str,
    /// What the bars are of.
    about: &'static str,
    /// What 100 % is.
    reference: Implementation,
    sides: &'static [Side],
    groups: &'static [Group],
}

struct Side {
    label: &'static str,
    implementation: Implementation,
    color: Color,
}

#[derive(Clone, Copy)]
enum Color {
    Ours,
    OursToo,
    Theirs,
    TheirsToo,
    Raw,
}

struct Group {
    label: &'static str,
    case: &'static str,
    setting: &'static str,
}

const fn side(label: &'static str, implementation: Implementation, color: Color) -> Side {
    Side {
        label,
        implementation,
        color,
    }
}

const fn group(label: &'static str, case: &'static str, setting: &'static str) -> Group {
    Group {
        label,
        case,
        setting,
    }
}

pub(super) const BLOCKING: Picture = Picture {
    name: "blocking",
    title: "Handlers that block: requests per second",
    about: "A request under way on each of 64 connections. 100 % is tokio where a handler that blocks says so.",
    reference: Implementation::TokioSpawning,
    sides: &[
        side(
            "tokio, spawn_blocking",
            Implementation::TokioSpawning,
            Color::Theirs,
        ),
        side("tokio", Implementation::Tokio, Color::TheirsToo),
        side("socknotify, serve", SERVE, Color::Ours),
        side("socknotify, async", ASYNC, Color::OursToo),
        side(
            "a thread for each connection",
            Implementation::Threads,
            Color::Raw,
        ),
    ],
    groups: &[
        group("each handler looks a row up in SQLite", "lookup", "apart=1"),
        group("1 % sleep 50 ms", "blocking", "blocking=1"),
        group("5 % do", "blocking", "blocking=5"),
        group("20 % do", "blocking", "blocking=20"),
    ],
};

pub(super) const SERVERS: Picture = Picture {
    name: "servers",
    title: "Servers whose handlers do not block: requests per second",
    about: "The server has one processor, and the client the other. 100 % is tokio.",
    reference: Implementation::Tokio,
    sides: &[
        side("tokio", Implementation::Tokio, Color::Theirs),
        side(
            "raw epoll, a set per thread",
            Implementation::RawEpollEach,
            Color::Raw,
        ),
        side("socknotify, keys", KEYS, Color::OursToo),
        side("socknotify, owned", OWNED, Color::Ours),
    ],
    groups: &[
        group("HTTP, 100 connections", "http", "apart=1 connections=100"),
        group(
            "HTTP, 1,000 connections",
            "http",
            "apart=1 connections=1000",
        ),
    ],
};

/// What a page is like.
#[derive(Clone, Copy)]
enum Theme {
    Light,
    Dark,
}

impl Theme {
    const ALL: [Theme; 2] = [Theme::Light, Theme::Dark];

    const fn name(self) -> &'static str {
        match self {
            Theme::Light => "light",
            Theme::Dark => "dark",
        }
    }

    const fn page(self) -> &'static str {
        match self {
            Theme::Light => "#ffffff",
            Theme::Dark => "#0d1117",
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Theme::Light => "#1f2328",
            Theme::Dark => "#e6edf3",
        }
    }

    const fn quiet_text(self) -> &'static str {
        match self {
            Theme::Light => "#59636e",
            Theme::Dark => "#9198a1",
        }
    }
}

impl Color {
    const fn on(self, theme: Theme) -> &'static str {
        let (light, dark) = match self {
            Color::Ours => ("#d9480f", "#ff8f4c"),
            Color::OursToo => ("#f0a35e", "#a85a1f"),
            Color::Theirs => ("#495057", "#adb5bd"),
            Color::TheirsToo => ("#adb5bd", "#5c646d"),
            Color::Raw => ("#1864ab", "#74c0fc"),
        };
        match theme {
            Theme::Light => light,
            Theme::Dark => dark,
        }
    }
}

const WIDTH: usize = 760;
/// Where bars begin, and how long the longest is.
const LEFT: f64 = 264.0;
const LONGEST: f64 = 350.0;
const BAR: usize = 19;
const HEAD: usize = 72;

/// A median with its quartiles, to the reference's median, and the median itself.
struct Bar<'a> {
    side: &'a Side,
    ratio: f64,
    range: [f64; 2],
    rate: f64,
}

impl Picture {
    /// The bars of each group; `None` if a group was not run.
    fn bars(&self, report: &Report) -> Option<Vec<(&Group, Vec<Bar<'_>>)>> {
        let groups = self.groups.iter().map(|group| {
            let rate = |implementation| {
                let row = report.row(group.case, group.setting, Figure::Rate, implementation);
                row.and_then(|row| row.with_spread(Figure::Rate))
            };
            let (of, _) = rate(self.reference)?;
            let bars = self.sides.iter().filter_map(|side| {
                let (value, range) = rate(side.implementation)?;
                Some(Bar {
                    side,
                    ratio: value / of,
                    range: range.map(|it| it / of),
                    rate: value,
                })
            });
            Some((group, bars.collect()))
        });
        groups.collect()
    }

    /// For a document: the picture that suits the reader's page. Its figures are in the tables below it.
    pub(super) fn element(&self) -> String {
        format!(
            "<picture>\n\
             <source media=\"(prefers-color-scheme: dark)\" srcset=\"docs/pictures/{0}-dark.svg\">\n\
             <img width=\"{WIDTH}\" alt=\"{1}. The figures are in the tables below.\" src=\"docs/pictures/{0}-light.svg\">\n\
             </picture>\n",
            self.name, self.title
        )
    }

    fn words(&self, report: &Report) -> Option<String> {
        let groups = self.bars(report)?;
        let groups = groups.iter().map(|(group, bars)| {
            let bars = bars
                .iter()
                .map(|bar| format!("{} {}", bar.side.label, percent(bar.ratio)));
            format!("{}: {}", group.label, bars.collect::<Vec<_>>().join(", "))
        });
        let groups = groups.collect::<Vec<_>>().join("; ");
        Some(format!("{groups}."))
    }

    /// Both files, in this directory.
    pub(super) fn write(&self, directory: &Path, report: &Report) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        for theme in Theme::ALL {
            if let Some(image) = self.image(report, theme) {
                let name = format!("{}-{}.svg", self.name, theme.name());
                fs::write(directory.join(name), image)?;
            }
        }
        Ok(())
    }

    fn image(&self, report: &Report, theme: Theme) -> Option<String> {
        let groups = self.bars(report)?;
        let bars = || groups.iter().flat_map(|(_, bars)| bars);
        let most = bars().map(|bar| bar.ratio.max(bar.range[1]));
        let scale = LONGEST / most.fold(1.0, f64::max);
        let foot = format!(
            "{}\nThe thin lines are from quartile to quartile.",
            wrapped(&report.measured().trim().replace("**", ""), 105)
        );
        let end = HEAD + groups.len() * 30 + bars().count() * BAR;
        let height = end + 12 + foot.lines().count() * 18;
        let (page, text, quiet) = (theme.page(), theme.text(), theme.quiet_text());
        let mut image = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"{text}\">\n\
             <title>{}</title>\n<desc>{}</desc>\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" rx=\"6\" fill=\"{page}\"/>\n\
             <text x=\"16\" y=\"30\" font-size=\"17\" font-weight=\"600\">{}</text>\n\
             <text x=\"16\" y=\"52\" fill=\"{quiet}\">{}</text>\n",
            self.title,
            self.words(report)?,
            self.title,
            self.about
        );
        let mut top = HEAD;
        let line = LEFT + scale;
        let mut put = |text: std::fmt::Arguments<'_>| {
            image.write_fmt(text).expect("memory takes it");
            image.push('\n');
        };
        put(format_args!(
            "<path d=\"M{line:.1} {HEAD}V{end}\" stroke=\"{quiet}\" stroke-dasharray=\"3 3\"/>"
        ));
        for (group, bars) in &groups {
            let y = top + 18;
            put(format_args!(
                "<text x=\"16\" y=\"{y}\" font-weight=\"600\">{}</text>",
                group.label
            ));
            top += 26;
            for bar in bars {
                let (y, middle) = (top + 14, top as f64 + 9.5);
                let weight = match bar.side.implementation.is_ours() {
                    true => " font-weight=\"600\"",
                    false => "",
                };
                let width = (bar.ratio * scale).max(1.0);
                let [least, greatest] = bar.range.map(|it| LEFT + it * scale);
                let value = greatest.max(LEFT + width) + 8.0;
                put(format_args!(
                    "<text x=\"{}\" y=\"{y}\" text-anchor=\"end\"{weight}>{}</text>\n\
                     <rect x=\"{LEFT}\" y=\"{}\" width=\"{width:.1}\" height=\"13\" rx=\"2\" fill=\"{}\"/>\n\
                     <path d=\"M{least:.1} {middle}H{greatest:.1}\" stroke=\"{text}\" stroke-width=\"1.5\"/>\n\
                     <text x=\"{value:.1}\" y=\"{y}\"{weight} stroke=\"{page}\" stroke-width=\"4\" paint-order=\"stroke\">{} \
                     <tspan fill=\"{quiet}\" font-weight=\"400\">{}/s</tspan></text>",
                    LEFT - 8.0,
                    bar.side.label,
                    top + 3,
                    bar.side.color.on(theme),
                    percent(bar.ratio),
                    grouped(bar.rate),
                ));
                top += BAR;
            }
            top += 4;
        }
        for (number, line) in foot.lines().enumerate() {
            let y = end + 20 + number * 18;
            put(format_args!(
                "<text x=\"16\" y=\"{y}\" font-size=\"12\" fill=\"{quiet}\">{line}</text>"
            ));
        }
        image += "</svg>\n";
        Some(image)
    }
}

fn percent(ratio: f64) -> String {
    match ratio < 0.1 {
        true => format!("{:.1} %", ratio * 100.0),
        false => format!("{:.0} %", ratio * 100.0),
    }
}
