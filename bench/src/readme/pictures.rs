//! Pictures of the documents: bars in groups, for a light and for a dark page.

use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

use super::Report;
use super::tables::{ASYNC, KEYS, OWNED, SERVE, wrapped};
use crate::figure::{Figure, grouped};
use crate::implementation::Implementation;

/// Bars of each side in each group.
pub(super) struct Picture {
    name: &'static str,
    title: &'static str,
    /// What the bars are of.
    about: &'static str,
    scale: Scale,
    sides: &'static [Side],
    groups: &'static [Group],
}

#[derive(Clone, Copy)]
enum Scale {
    /// Requests per second, relative to this side's in the group.
    RateTo(Implementation),
    /// The longest wait. Each tenfold of it has the same length, for the sides are too far apart for any other scale.
    Decades,
}

impl Scale {
    const fn figure(self) -> Figure {
        match self {
            Scale::RateTo(_) => Figure::Rate,
            Scale::Decades => Figure::Longest,
        }
    }
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
    scale: Scale::RateTo(Implementation::TokioSpawning),
    sides: BLOCKING_SIDES,
    groups: &[
        group("each handler looks a row up in SQLite", "lookup", "apart=1"),
        group("1 % sleep 50 ms", "blocking", "blocking=1"),
        group("5 % do", "blocking", "blocking=5"),
        group("20 % do", "blocking", "blocking=20"),
        group("each computes 15 ms", "blocking-compute", "blocking=100"),
    ],
};

/// How long others wait.
pub(super) const WAITS: Picture = Picture {
    name: "waits",
    title: "Handlers that block at once: the longest wait of another connection",
    about: "Less is better. The lines across are at 1, 10 and 100 ms, and at 1 and 10 s.",
    scale: Scale::Decades,
    sides: BLOCKING_SIDES,
    groups: &[
        group("10 handlers sleep 50 ms", "burst", "connections=10"),
        group("30 do", "burst", "connections=30"),
        group("100 do", "burst", "connections=100"),
        group("4 compute 1 s", "compute", "connections=4"),
    ],
};

const BLOCKING_SIDES: &[Side] = &[
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
];

pub(super) const SERVERS: Picture = Picture {
    name: "servers",
    title: "Servers whose handlers do not block: requests per second",
    about: "The server has one processor, and the client the other. 100 % is tokio.",
    scale: Scale::RateTo(Implementation::Tokio),
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

/// What a logarithmic scale begins with, in microseconds, and how many times ten follow.
const DECADES: (f64, i32) = (100.0, 5);

/// A median with its quartiles, in parts of the scale, and what is written beside it.
struct Bar<'a> {
    side: &'a Side,
    length: f64,
    range: [f64; 2],
    value: String,
    /// Small, behind the value.
    unit: String,
}

impl Picture {
    /// The bars of each group; `None` if a group was not run.
    fn bars(&self, report: &Report) -> Option<Vec<(&Group, Vec<Bar<'_>>)>> {
        let groups = self.groups.iter().map(|group| {
            let figure = |implementation| {
                let figure = self.scale.figure();
                let row = report.row(group.case, group.setting, figure, implementation);
                row.and_then(|row| row.with_spread(figure))
            };
            let of = match self.scale {
                Scale::RateTo(reference) => figure(reference)?.0,
                Scale::Decades => DECADES.0,
            };
            let bars = self.sides.iter().filter_map(|side| {
                let (median, range) = figure(side.implementation)?;
                let length = |it: f64| match self.scale {
                    Scale::RateTo(_) => it / of,
                    Scale::Decades => (it / of).log10().max(0.0),
                };
                let (value, unit) = match self.scale {
                    Scale::RateTo(_) => (percent(median / of), format!("{}/s", grouped(median))),
                    Scale::Decades => (milliseconds(median), "ms".to_owned()),
                };
                Some(Bar {
                    side,
                    length: length(median),
                    range: range.map(length),
                    value,
                    unit,
                })
            });
            let bars: Vec<_> = bars.collect();
            (!bars.is_empty()).then_some((group, bars))
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
                .map(|bar| format!("{} {}", bar.side.label, self.told(bar)));
            format!("{}: {}", group.label, bars.collect::<Vec<_>>().join(", "))
        });
        let groups = groups.collect::<Vec<_>>().join("; ");
        Some(format!("{groups}."))
    }

    /// A bar's value for one who does not see it.
    fn told(&self, bar: &Bar<'_>) -> String {
        match self.scale {
            Scale::RateTo(_) => bar.value.clone(),
            Scale::Decades => format!("{} {}", bar.value, bar.unit),
        }
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
        let most = bars().map(|bar| bar.length.max(bar.range[1]));
        let scale = match self.scale {
            Scale::RateTo(_) => LONGEST / most.fold(1.0, f64::max),
            Scale::Decades => LONGEST / f64::from(DECADES.1),
        };
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
        let mut put = |text: std::fmt::Arguments<'_>| {
            image.write_fmt(text).expect("memory takes it");
            image.push('\n');
        };
        // The more there are, the fainter: values stand between them.
        let (lines, opacity) = match self.scale {
            Scale::RateTo(_) => (1, 1.0),
            Scale::Decades => (DECADES.1, 0.4),
        };
        for line in 1..=lines {
            let x = LEFT + f64::from(line) * scale;
            put(format_args!(
                "<path d=\"M{x:.1} {HEAD}V{end}\" stroke=\"{quiet}\" stroke-dasharray=\"3 3\" opacity=\"{opacity}\"/>"
            ));
        }
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
                let width = (bar.length * scale).max(1.0);
                let [least, greatest] = bar.range.map(|it| LEFT + it * scale);
                let value = greatest.max(LEFT + width) + 8.0;
                put(format_args!(
                    "<text x=\"{}\" y=\"{y}\" text-anchor=\"end\"{weight}>{}</text>\n\
                     <rect x=\"{LEFT}\" y=\"{}\" width=\"{width:.1}\" height=\"13\" rx=\"2\" fill=\"{}\"/>\n\
                     <path d=\"M{least:.1} {middle}H{greatest:.1}\" stroke=\"{text}\" stroke-width=\"1.5\"/>\n\
                     <text x=\"{value:.1}\" y=\"{y}\"{weight} stroke=\"{page}\" stroke-width=\"4\" paint-order=\"stroke\">{} \
                     <tspan fill=\"{quiet}\" font-weight=\"400\">{}</tspan></text>",
                    LEFT - 8.0,
                    bar.side.label,
                    top + 3,
                    bar.side.color.on(theme),
                    bar.value,
                    bar.unit,
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

fn milliseconds(microseconds: f64) -> String {
    let value = microseconds / 1000.0;
    match value < 10.0 {
        true => format!("{value:.1}"),
        false => grouped(value),
    }
}
