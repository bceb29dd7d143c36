//! What is to be reached, and what was found: one line for each goal.

use crate::case::{Parameter, Setting};
use crate::figure::Figure;
use crate::implementation::Implementation;
use crate::row::Row;

/// A goal, in the words of the table in README.md.
pub(crate) struct Goal {
    pub(crate) case: &'static str,
    pub(crate) against: &'static str,
    pub(crate) goal: &'static str,
    /// What one of our implementations reaches, in each setting that counts.
    find: fn(&Found, Implementation) -> Vec<f64>,
    decimals: usize,
}

const ONLY_EPOLL: [Implementation; 1] = [Implementation::RawEpoll];

pub(crate) const GOALS: [Goal; 16] = [
    Goal {
        case: "one-shot level, 16 to 512 ready per turn, net time",
        against: "raw epoll, one-shot, a MOD each",
        goal: "at most 0.65 on epoll, 0.60 on io_uring",
        find: |found, ours| {
            found.ratios("one-shot", Figure::NetCpu, ours, &ONLY_EPOLL, |it| {
                it.get(Parameter::Batch) >= 16
            })
        },
        decimals: 2,
    },
    Goal {
        case: "the same with 1 ready",
        against: "the same",
        goal: "at most 1.05",
        find: |found, ours| {
            found.ratios("one-shot", Figure::NetCpu, ours, &ONLY_EPOLL, |it| {
                it.get(Parameter::Batch) == 1
            })
        },
        decimals: 2,
    },
    Goal {
        case: "one-shot level, net time",
        against: "polling",
        goal: "at most 0.5",
        find: |found, ours| {
            let polling = [Implementation::Polling];
            found.ratios("one-shot", Figure::NetCpu, ours, &polling, |_| true)
        },
        decimals: 2,
    },
    Goal {
        case: "edge persistent, net time",
        against: "raw epoll, edge",
        goal: "at most 1.15",
        find: |found, ours| found.ratios("edge", Figure::NetCpu, ours, &ONLY_EPOLL, |_| true),
        decimals: 2,
    },
    Goal {
        case: "the same",
        against: "mio",
        goal: "at most 1.0",
        find: |found, ours| {
            found.ratios("edge", Figure::NetCpu, ours, &[Implementation::Mio], |_| {
                true
            })
        },
        decimals: 2,
    },
    Goal {
        case: "best of ours, one-shot, net time",
        against: "the best raw loop of all",
        goal: "at most 1.15",
        find: |found, ours| {
            let raw = [
                Implementation::RawEpoll,
                Implementation::RawEpollOnePoll,
                Implementation::RawUring,
            ];
            found.ratios("one-shot", Figure::NetCpu, ours, &raw, |_| true)
        },
        decimals: 2,
    },
    Goal {
        case: "system calls per turn with 64 re-arms",
        against: "counted",
        goal: "2 on epoll, 1 on io_uring",
        find: |found, ours| found.values("one-shot", Figure::SystemCalls, ours, is_batch_of_64),
        decimals: 2,
    },
    Goal {
        case: "echo, 16 threads, requests per second",
        against: "raw epoll, same threads",
        goal: "at least 1.2",
        find: |found, ours| {
            found.ratios("echo", Figure::Rate, ours, &ONLY_EPOLL, |it| {
                it.get(Parameter::Threads) == 16
            })
        },
        decimals: 2,
    },
    Goal {
        case: "echo, 64 threads, requests per second",
        against: "the same",
        goal: "at least 1.4",
        find: |found, ours| {
            found.ratios("echo", Figure::Rate, ours, &ONLY_EPOLL, |it| {
                it.get(Parameter::Threads) == 64
            })
        },
        decimals: 2,
    },
    Goal {
        case: "the same",
        against: "the best raw epoll row of any thread count",
        goal: "at least 0.95",
        find: |found, ours| found.many_threads(ours),
        decimals: 2,
    },
    Goal {
        case: "HTTP under load, requests per second",
        against: "tokio, same work",
        goal: "at least 1.2",
        find: |found, ours| {
            found.ratios("http", Figure::Rate, ours, &[Implementation::Tokio], |_| {
                true
            })
        },
        decimals: 2,
    },
    Goal {
        case: "post to wake",
        against: "mio's waker",
        goal: "at most 1.1",
        find: |found, ours| {
            found.ratios("post", Figure::Gross, ours, &[Implementation::Mio], |_| {
                true
            })
        },
        decimals: 2,
    },
    Goal {
        case: "instructions of our own per notification, batch 64",
        against: "callgrind",
        goal: "at most 200",
        find: |found, ours| found.values("one-shot", Figure::Instructions, ours, is_batch_of_64),
        decimals: 0,
    },
    Goal {
        case: "allocations on the hot path",
        against: "counted",
        goal: "0",
        find: |found, ours| found.values("one-shot", Figure::Allocations, ours, |_| true),
        decimals: 0,
    },
    Goal {
        case: "memory of our own per idle registration, bytes",
        against: "counted",
        goal: "at most 64",
        find: |found, ours| {
            // What a port takes by itself is spread over many.
            found.values("memory", Figure::Bytes, ours, |it| {
                it.get(Parameter::Idle) >= 1000
            })
        },
        decimals: 0,
    },
    Goal {
        case: "cost per notification from 10 to most idle",
        against: "itself with 10",
        goal: "within 20 %",
        find: |found, ours| found.beside_idle(ours),
        decimals: 2,
    },
];

fn is_batch_of_64(setting: &Setting) -> bool {
    setting.get(Parameter::Batch) == 64
}

impl Goal {
    /// What was found, `None` if the case was not run.
    pub(crate) fn measured(&self, rows: &[Row]) -> Option<String> {
        let found = Found(rows);
        let sides = Implementation::ours().filter_map(|ours| {
            let values = (self.find)(&found, ours);
            let least = values.iter().copied().min_by(f64::total_cmp)?;
            let most = values.iter().copied().max_by(f64::total_cmp)?;
            let decimals = self.decimals;
            let [least, most] = [least, most].map(|it| format!("{it:.decimals$}"));
            let name = ours.to_string();
            let name = name.trim_start_matches("socknotify ");
            Some(match least == most {
                true => format!("{name}: {least}"),
                false => format!("{name}: {least} to {most}"),
            })
        });
        let sides: Vec<_> = sides.collect();
        (!sides.is_empty()).then(|| sides.join("; "))
    }
}

/// The table of README.md.
pub(crate) fn markdown(rows: &[Row]) -> String {
    let mut table = String::from("| case | against | goal | measured |\n|---|---|---|---|\n");
    for goal in &GOALS {
        let measured = goal.measured(rows).unwrap_or_else(|| "not run".to_owned());
        let Goal {
            case,
            against,
            goal,
            ..
        } = goal;
        table += &format!("| {case} | {against} | {goal} | {measured} |\n");
    }
    table
}

/// All rows that there are.
struct Found<'a>(&'a [Row]);

impl Found<'_> {
    fn values(
        &self,
        case: &str,
        figure: Figure,
        implementation: Implementation,
        counts: impl Fn(&Setting) -> bool,
    ) -> Vec<f64> {
        let rows = self.0.iter();
        rows.filter(|row| row.case == case && row.implementation == implementation)
            .filter(|row| counts(&row.setting))
            .filter_map(|row| row.get(figure))
            .collect()
    }

    /// Ours to the best of theirs, in each setting.
    fn ratios(
        &self,
        case: &str,
        figure: Figure,
        ours: Implementation,
        theirs: &[Implementation],
        counts: impl Fn(&Setting) -> bool,
    ) -> Vec<f64> {
        let rows = self.0.iter();
        rows.filter(|row| row.case == case && row.implementation == ours)
            .filter(|row| counts(&row.setting))
            .filter_map(|row| {
                let same = |setting: &Setting| *setting == row.setting;
                let theirs = theirs
                    .iter()
                    .flat_map(|&it| self.values(case, figure, it, same));
                let best = match figure {
                    Figure::Rate => theirs.max_by(f64::total_cmp),
                    _ => theirs.min_by(f64::total_cmp),
                };
                Some(row.get(figure)? / best?)
            })
            .collect()
    }

    /// Ours with 64 threads, to raw epoll with as many threads as are best for it.
    fn many_threads(&self, ours: Implementation) -> Vec<f64> {
        let rows = self.0.iter();
        rows.filter(|row| row.case == "echo" && row.implementation == ours)
            .filter(|row| row.setting.get(Parameter::Threads) == 64)
            .filter_map(|row| {
                let rest = row.setting.without(Parameter::Threads);
                let similar = |it: &Setting| it.without(Parameter::Threads) == rest;
                let raw = self.values("echo", Figure::Rate, Implementation::RawEpoll, similar);
                Some(row.get(Figure::Rate)? / raw.into_iter().max_by(f64::total_cmp)?)
            })
            .collect()
    }

    /// With the most idle registrations, to the fewest.
    fn beside_idle(&self, ours: Implementation) -> Vec<f64> {
        let values = self.values("idle", Figure::NetCpu, ours, |_| true);
        match &*values {
            [few, .., many] => vec![many / few],
            _ => Vec::new(),
        }
    }
}
