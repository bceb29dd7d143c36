//! A case's run: every implementation in turn, and again in each round.

use std::io;

use crate::case::{Axis, Case, Effort, Parameter, Setting, Trial};
use crate::descriptors;
use crate::figure::{Figure, Sample, Summary};
use crate::implementation::Implementation;
use crate::row::{self, Row};
use crate::{count, processors};

/// What of a case to run.
pub(crate) struct Plan {
    pub(crate) effort: Effort,
    /// Leave out what takes time to be found.
    pub(crate) only_count: bool,
    /// Leave out what is counted.
    pub(crate) only_time: bool,
    /// Of the axes, take the values for a quick run.
    pub(crate) quick: bool,
    /// Values for a parameter in place of those of the cases, unless there are none.
    pub(crate) values: Vec<(Parameter, Vec<usize>)>,
    /// Implementations take part with one of these in their names, all if there are none.
    pub(crate) only: Vec<String>,
    /// They are to be their whole names.
    pub(crate) is_exact: bool,
}

impl Plan {
    fn settings(&self, case: &Case) -> Vec<Setting> {
        let mut settings = vec![Setting::default()];
        for axis in case.axes {
            let mut values = self.values(axis);
            if axis.parameter.takes_descriptors() {
                within_limit(&mut values);
            }
            settings = settings
                .iter()
                .flat_map(|setting| values.iter().map(|&it| setting.with(axis.parameter, it)))
                .collect();
        }
        settings
    }

    fn values(&self, axis: &Axis) -> Vec<usize> {
        let mut values = self.values.iter();
        let asked = values.find(|(it, values)| *it == axis.parameter && !values.is_empty());
        match asked {
            Some((_, values)) => values.clone(),
            None if self.quick => axis.quick.to_vec(),
            None => axis.values.to_vec(),
        }
    }

    fn takes_part(&self, implementation: Implementation) -> bool {
        let name = implementation.to_string();
        let mut parts = self.only.iter();
        self.only.is_empty()
            || parts.any(|part| match self.is_exact {
                true => name == *part,
                false => name.contains(part),
            })
    }

    /// Run a case, and give the rows of each setting to `found`.
    pub(crate) fn run(
        &self,
        case: &Case,
        mut found: impl FnMut(&Setting, Vec<Row>),
    ) -> io::Result<()> {
        let implementations: Vec<_> = (case.implementations)()
            .into_iter()
            .filter(|&it| it == Implementation::Bare || self.takes_part(it))
            .filter(|it| it.works_here())
            .collect();
        for setting in self.settings(case) {
            let mut found_here = vec![Summary::default(); implementations.len()];
            if !self.only_count {
                let effort = Effort {
                    notifications: self.effort.notifications.div_ceil(case.parts),
                    ..self.effort
                };
                let mut trial = (case.prepare)(&setting, effort)?;
                let samples = self.effort.rounds * case.parts;
                found_here = measure(&mut *trial, &implementations, samples)?;
            }
            if case.is_counted && !self.only_time {
                count_turns(case, &setting, &implementations, &mut found_here)?;
            }
            found(&setting, rows(case, &setting, &implementations, found_here));
        }
        Ok(())
    }
}

/// Measure every implementation in turn, so often.
fn measure(
    trial: &mut dyn Trial,
    implementations: &[Implementation],
    times: usize,
) -> io::Result<Vec<Summary>> {
    let mut samples = vec![Vec::new(); implementations.len()];
    for _ in 0..times {
        let mut bare = Sample::new();
        for (&implementation, samples) in implementations.iter().zip(&mut samples) {
            let Some(mut sample) = trial.measure(implementation)? else {
                continue;
            };
            match implementation {
                Implementation::Bare => bare = sample.clone(),
                _ => add_net(&bare, &mut sample),
            }
            samples.push(sample);
        }
    }
    Ok(samples.iter().map(|it| Summary::of(it)).collect())
}

/// Times without those of the case's own reads and writes in the same round.
fn add_net(bare: &Sample, sample: &mut Sample) {
    for (gross, net) in [(Figure::Gross, Figure::Net), (Figure::Cpu, Figure::NetCpu)] {
        if let (Some(bare), Some(&value)) = (bare.get(&gross), sample.get(&gross)) {
            sample.insert(net, value - bare);
        }
    }
}

/// What the limit of descriptors does not allow becomes what it allows.
fn within_limit(values: &mut Vec<usize>) {
    let available = descriptors::available();
    for value in &mut *values {
        if *value > available {
            eprintln!("{value} descriptors are more than the limit allows: {available} instead");
            *value = available;
        }
    }
    values.dedup();
}

fn count_turns(
    case: &Case,
    setting: &Setting,
    implementations: &[Implementation],
    found: &mut [Summary],
) -> io::Result<()> {
    let sides = implementations.iter().copied().zip(found);
    let sides = sides.filter(|&(implementation, _)| implementation != Implementation::Bare);
    let (mut all, found): (Vec<_>, Vec<_>) = sides.unzip();
    // What the case does by itself is taken off, whether it is shown or not.
    all.insert(0, Implementation::Bare);
    let counted = processors::on_each(&all, |&it| count::per_turn(case, it, setting))?;
    let mut counted = counted.into_iter();
    let bare = counted.next().flatten().unwrap_or_default();
    for (counted, found) in counted.zip(found) {
        if let Some(mut counted) = counted {
            count::take_off(&bare, &mut counted);
            found.medians.append(&mut counted);
        }
    }
    Ok(())
}

/// The reference is the first implementation that has the figure in question.
fn rows(
    case: &Case,
    setting: &Setting,
    implementations: &[Implementation],
    found: Vec<Summary>,
) -> Vec<Row> {
    let mut reference = None;
    let sides = implementations.iter().zip(found);
    sides
        .filter(|(_, found)| !found.medians.is_empty())
        .map(|(&implementation, Summary { medians, spread })| {
            let figure = case.compared_by;
            let value = medians.get(&figure).copied();
            let range = spread.get(&figure).copied();
            let is_reference = reference.is_none();
            let reference = value.map(|value| *reference.get_or_insert((value, range)));
            let ratio = value.zip(reference).map(|(value, (of, _))| value / of);
            let ranges = range.zip(reference.and_then(|(_, range)| range));
            Row {
                case: case.name,
                implementation,
                setting: setting.clone(),
                ratio: ratio.filter(|ratio| ratio.is_finite()),
                is_within_spread: !is_reference
                    && ranges.is_some_and(|(one, other)| row::overlap(one, other)),
                figures: medians,
                spread,
            }
        })
        .collect()
}
