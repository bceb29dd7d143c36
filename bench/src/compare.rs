//! Every side of a case in turn, and again in each round.

use std::collections::BTreeMap;
use std::io;

use serde_json::json;

use crate::environment;

/// What one measurement found: figures by name. The unit ends the name.
pub(crate) type Sample = BTreeMap<&'static str, f64>;

/// What to measure of a question's cases, and for how long.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Rounds, in each of which every side is measured once [default: the question's, 5 to 21]
    #[arg(long)]
    rounds: Option<usize>,
    /// How long each measurement takes, about; with wrk, whole seconds
    #[arg(long, default_value_t = 500)]
    pub(crate) milliseconds: usize,
    /// Only cases whose names contain this
    #[arg(long, default_value = "")]
    case: String,
    /// Only sides whose names contain this
    #[arg(long, default_value = "")]
    side: String,
}

impl Options {
    pub(crate) fn measure(&self, question: fn(&Options) -> io::Result<()>) -> io::Result<()> {
        println!("{}", environment::now());
        question(self)
    }

    pub(crate) fn wants(&self, case: &str) -> bool {
        case.contains(&self.case)
    }

    /// Notifications in a measurement where no client sets the pace.
    pub(crate) fn notifications(&self) -> usize {
        50 * self.milliseconds
    }

    /// Measures these sides, of which some may say that a case is not for them.
    pub(crate) fn compare<S>(
        &self,
        case: &str,
        rounds: usize,
        sides: &[(&str, S)],
        mut measure: impl FnMut(&S) -> io::Result<Option<Sample>>,
    ) -> io::Result<()> {
        eprintln!("\n{case}");
        let sides = sides.iter().filter(|(name, _)| name.contains(&self.side));
        let mut found: Vec<_> = sides
            .map(|side| (side, BTreeMap::<_, Vec<f64>>::new()))
            .collect();
        for _ in 0..self.rounds.unwrap_or(rounds) {
            for ((_, side), figures) in &mut found {
                for (figure, value) in measure(side)?.unwrap_or_default() {
                    figures.entry(figure).or_default().push(value);
                }
            }
        }
        for ((name, _), figures) in found.into_iter().filter(|(_, figures)| !figures.is_empty()) {
            let mut row = json!({ "case": case, "side": name });
            eprint!("  {name:24}");
            for (figure, mut values) in figures {
                values.sort_by(f64::total_cmp);
                let [lower, median, upper] = [0.25, 0.5, 0.75]
                    .map(|part| (quantile(&values, part) * 1000.0).round() / 1000.0);
                row[figure] = json!([lower, median, upper]);
                eprint!("  {figure} {median:.1} ({lower:.1} to {upper:.1})");
            }
            eprintln!();
            println!("{row}");
        }
        Ok(())
    }
}

/// Between the two values that are next to it, in proportion.
pub(crate) fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let (below, above) = (
        sorted[place.floor() as usize],
        sorted[place.ceil() as usize],
    );
    below + (above - below) * place.fract()
}
