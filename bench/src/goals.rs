//! What is to be reached, and what was found: one line for each goal.

use std::ops::RangeInclusive;

use crate::case::{Order, Parameter, Setting};
use crate::figure::Figure;
use crate::implementation::Implementation;
use crate::row::Row;

/// A goal, in the words of the table in README.md.
pub(crate) struct Goal {
    pub(crate) case: &'static str,
    pub(crate) against: &'static str,
    pub(crate) goal: &'static str,
    /// What one of our implementations reaches, in each setting that counts.
    find: fn(&Found<'_>, Implementation) -> Vec<f64>,
    decimals: usize,
}

const ONLY_EPOLL: [Implementation; 1] = [Implementation::RawEpoll];
const ONLY_MIO: [Implementation; 1] = [Implementation::Mio];
const ONLY_TOKIO: [Implementation; 1] = [Implementation::Tokio];

/// Raw servers.
const RAW: [Implementation; 3] = [
    Implementation::RawEpoll,
    Implementation::RawEpollEach,
    Implementation::RawUring,
];

/// All servers but ours.
const THEIRS: [Implementation; 6] = [
    Implementation::RawEpoll,
    Implementation::RawEpollEach,
    Implementation::RawUring,
    Implementation::Polling,
    Implementation::Mio,
    Implementation::Tokio,
];

pub(crate) const GOALS: [Goal; 33] = [
    Goal {
        case: "one-shot, armed then written, 4 to 512 ready, net CPU time",
        against: "raw epoll, one-shot, a MOD each, same order",
        goal: "faithful: at most 1.0",
        find: |found, ours| found.one_shot_if(is_faithful(ours), ours, 4..=512),
        decimals: 2,
    },
    Goal {
        case: "the same, 16 to 512 ready",
        against: "the same",
        goal: "owned: at most 0.65",
        find: |found, ours| found.one_shot_if(!is_faithful(ours), ours, 16..=512),
        decimals: 2,
    },
    Goal {
        case: "the same, 4 ready",
        against: "the same",
        goal: "owned: at most 0.9",
        find: |found, ours| found.one_shot_if(!is_faithful(ours), ours, 4..=4),
        decimals: 2,
    },
    Goal {
        case: "the same, 1 ready",
        against: "the same",
        goal: "at most 1.25 faithful, 1.15 owned",
        find: |found, ours| found.one_shot(ours, Order::ArmedWritten, 1..=1),
        decimals: 2,
    },
    Goal {
        case: "one-shot, written then armed, 16 to 512 ready, net CPU time",
        against: "raw epoll, one-shot, a MOD each, same order",
        goal: "at most 0.65",
        find: |found, ours| found.one_shot(ours, Order::WrittenArmed, 16..=512),
        decimals: 2,
    },
    Goal {
        case: "the same, 1 ready",
        against: "the same",
        goal: "at most 1.25 faithful, 1.15 owned",
        find: |found, ours| found.one_shot(ours, Order::WrittenArmed, 1..=1),
        decimals: 2,
    },
    Goal {
        case: "one-shot, both orders, net CPU time",
        against: "polling",
        goal: "at most 0.5",
        find: |found, ours| {
            let polling = [Implementation::Polling];
            found.ratios("one-shot", Figure::NetCpu, ours, &polling, |_| true)
        },
        decimals: 2,
    },
    Goal {
        case: "the same",
        against: "the best raw loop of all",
        goal: "the better of ours: at most 1.15",
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
        case: "edge persistent, 1 ready, net CPU time",
        against: "raw epoll, edge",
        goal: "at most 1.3",
        find: |found, ours| found.ratios("edge", Figure::NetCpu, ours, &ONLY_EPOLL, is_batch_of_1),
        decimals: 2,
    },
    Goal {
        case: "the same",
        against: "mio",
        goal: "at most 1.3",
        find: |found, ours| found.ratios("edge", Figure::NetCpu, ours, &ONLY_MIO, is_batch_of_1),
        decimals: 2,
    },
    Goal {
        case: "edge persistent, 4 to 512 ready, net CPU time",
        against: "raw epoll, edge",
        goal: "at most 1.15",
        find: |found, ours| {
            found.ratios("edge", Figure::NetCpu, ours, &ONLY_EPOLL, |it| {
                !is_batch_of_1(it)
            })
        },
        decimals: 2,
    },
    Goal {
        case: "the same",
        against: "mio",
        goal: "at most 1.0",
        find: |found, ours| {
            found.ratios("edge", Figure::NetCpu, ours, &ONLY_MIO, |it| {
                !is_batch_of_1(it)
            })
        },
        decimals: 2,
    },
    Goal {
        case: "registering and removing, CPU time",
        against: "raw epoll",
        goal: "at most 1.5",
        find: |found, ours| found.ratios("churn", Figure::Cpu, ours, &ONLY_EPOLL, |_| true),
        decimals: 2,
    },
    Goal {
        case: "system calls with 64 re-arms, written then armed",
        against: "counted",
        goal: "at most 2",
        find: |found, ours| {
            found.values("one-shot", Figure::SystemCalls, ours, |it| {
                it.order() == Order::WrittenArmed && is_batch_of_64(it)
            })
        },
        decimals: 2,
    },
    Goal {
        case: "system calls per batch of 64 drained connections, written then armed",
        against: "counted",
        goal: "drained: 1",
        find: |found, ours| match ours {
            Implementation::Drained(_) => {
                found.values("one-shot", Figure::SystemCalls, ours, |it| {
                    it.order() == Order::WrittenArmed && is_batch_of_64(it)
                })
            }
            _ => Vec::new(),
        },
        decimals: 2,
    },
    Goal {
        case: "instructions of our own, a call with 1 ready (written then armed)",
        against: "callgrind",
        goal: "at most 700 faithful, 900 owned",
        find: |found, ours| {
            found.values("one-shot", Figure::Instructions, ours, |it| {
                it.order() == Order::WrittenArmed && is_batch_of_1(it)
            })
        },
        decimals: 0,
    },
    Goal {
        case: "instructions of our own per notification, 64 ready, both orders",
        against: "callgrind",
        goal: "at most 250 faithful, 400 owned",
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
        against: "the best raw row of any thread count",
        goal: "at least 1.0",
        find: |found, ours| found.many_threads(ours),
        decimals: 2,
    },
    Goal {
        case: "echo, 16 and 64 threads, requests per second",
        against: "tokio, as many workers",
        goal: "at least 1.0",
        find: |found, ours| {
            found.ratios("echo", Figure::Rate, ours, &ONLY_TOKIO, |it| {
                matches!(it.get(Parameter::Threads), 16 | 64)
            })
        },
        decimals: 2,
    },
    Goal {
        case: "echo, 20 µs of work, 2 to 64 threads, requests per second",
        against: "the best of all others, same threads",
        goal: "at least 1.0",
        find: |found, ours| {
            found.ratios("echo", Figure::Rate, ours, &THEIRS, |it| {
                it.get(Parameter::Work) == 20 && it.get(Parameter::Threads) >= 2
            })
        },
        decimals: 2,
    },
    Goal {
        case: "echo, 1 thread, room for 64, requests per second",
        against: "the best of raw epoll and mio",
        goal: "at least 1.0",
        find: |found, ours| {
            let theirs = [
                Implementation::RawEpoll,
                Implementation::RawEpollEach,
                Implementation::Mio,
            ];
            found.ratios("echo-one", Figure::Rate, ours, &theirs, |_| true)
        },
        decimals: 2,
    },
    Goal {
        case: "HTTP, 100 connections, requests per second",
        against: "ours, faithful",
        goal: "owned: at least 1.0",
        find: |found, ours| found.http_to_faithful(Figure::Rate, ours),
        decimals: 2,
    },
    Goal {
        case: "the same, CPU time of the server per request",
        against: "ours, faithful",
        goal: "owned: at most 1.0",
        find: |found, ours| found.http_to_faithful(Figure::ServerCpu, ours),
        decimals: 2,
    },
    Goal {
        case: "HTTP, 100 and 1,000 connections, requests per second",
        against: "tokio, same work",
        goal: "owned: at least 1.2",
        find: |found, ours| found.ratios("http", Figure::Rate, ours, &ONLY_TOKIO, |_| true),
        decimals: 2,
    },
    Goal {
        case: "the same, CPU time of the server per request",
        against: "tokio, same work",
        goal: "owned: at most 0.9",
        find: |found, ours| found.ratios("http", Figure::ServerCpu, ours, &ONLY_TOKIO, |_| true),
        decimals: 2,
    },
    Goal {
        case: "HTTP, 100 connections, waits for each request",
        against: "itself before there were wake policies, 0.15",
        goal: "at most 0.05",
        find: |found, ours| found.values("http", Figure::Switches, ours, is_100_connections),
        decimals: 2,
    },
    Goal {
        case: "HTTP at half of the highest rate, 99th percentile of the latency",
        against: "tokio, same rate",
        goal: "at most 1.0",
        find: |found, ours| {
            found.ratios("latency", Figure::P99, ours, &ONLY_TOKIO, |it| {
                it.get(Parameter::Load) == 50
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

/// The port with keys, not the one that owns connections.
fn is_faithful(ours: Implementation) -> bool {
    matches!(ours, Implementation::Socknotify(_))
}

fn is_100_connections(setting: &Setting) -> bool {
    setting.get(Parameter::Connections) == 100
}

fn is_batch_of_1(setting: &Setting) -> bool {
    setting.get(Parameter::Batch) == 1
}

fn is_batch_of_64(setting: &Setting) -> bool {
    setting.get(Parameter::Batch) == 64
}

impl Goal {
    /// What was found, `None` if the case was not run.
    pub(crate) fn measured(&self, rows: &[Row]) -> Option<String> {
        let found = Found(rows);
        let sides = Implementation::all_ours().filter_map(|ours| {
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

    /// One-shot, to raw epoll in the same order.
    fn one_shot(
        &self,
        ours: Implementation,
        order: Order,
        batches: RangeInclusive<usize>,
    ) -> Vec<f64> {
        self.ratios("one-shot", Figure::NetCpu, ours, &ONLY_EPOLL, |it| {
            it.order() == order && batches.contains(&it.get(Parameter::Batch))
        })
    }

    /// The same, armed then written, where the goal is for this implementation.
    fn one_shot_if(
        &self,
        is_meant: bool,
        ours: Implementation,
        batches: RangeInclusive<usize>,
    ) -> Vec<f64> {
        match is_meant {
            true => self.one_shot(ours, Order::ArmedWritten, batches),
            false => Vec::new(),
        }
    }

    /// The port that owns connections, to the port with keys.
    fn http_to_faithful(&self, figure: Figure, ours: Implementation) -> Vec<f64> {
        let Implementation::Owned(backend) = ours else {
            return Vec::new();
        };
        let faithful = [Implementation::Socknotify(backend)];
        self.ratios("http", figure, ours, &faithful, is_100_connections)
    }

    /// Ours with 64 threads, to the best raw server with as many threads as are best for it.
    fn many_threads(&self, ours: Implementation) -> Vec<f64> {
        let rows = self.0.iter();
        rows.filter(|row| row.case == "echo" && row.implementation == ours)
            .filter(|row| row.setting.get(Parameter::Threads) == 64)
            .filter_map(|row| {
                let rest = row.setting.without(Parameter::Threads);
                let similar = |it: &Setting| it.without(Parameter::Threads) == rest;
                let raw = RAW
                    .iter()
                    .flat_map(|&it| self.values("echo", Figure::Rate, it, similar));
                Some(row.get(Figure::Rate)? / raw.max_by(f64::total_cmp)?)
            })
            .collect()
    }

    /// With the most idle registrations, to the fewest, in each order.
    fn beside_idle(&self, ours: Implementation) -> Vec<f64> {
        let ratio = |order| {
            let values = self.values("idle", Figure::NetCpu, ours, |it| it.order() == order);
            match &*values {
                [few, .., many] => Some(many / few),
                _ => None,
            }
        };
        Order::ALL.into_iter().filter_map(ratio).collect()
    }
}
