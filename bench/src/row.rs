//! [`Row`]: what is known of one implementation in one setting.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::case::{Case, Parameter, Setting};
use crate::cases;
use crate::figure::{Figure, Sample, Spread};
use crate::implementation::Implementation;
use crate::output;

#[derive(Clone)]
pub(crate) struct Row {
    pub(crate) case: &'static str,
    pub(crate) implementation: Implementation,
    pub(crate) setting: Setting,
    /// Medians of the rounds, and what was counted.
    pub(crate) figures: Sample,
    /// The quartiles of the rounds.
    pub(crate) spread: Spread,
    /// Of the figure that the case is compared by, to the reference's.
    pub(crate) ratio: Option<f64>,
    /// The quartiles of that figure overlap with the reference's: the run does not say which one is better.
    pub(crate) is_within_spread: bool,
}

impl Row {
    pub(crate) fn get(&self, figure: Figure) -> Option<f64> {
        self.figures.get(&figure).copied()
    }

    /// The ratio, with a mark where it says nothing.
    pub(crate) fn show_ratio(&self) -> Option<String> {
        let mark = if self.is_within_spread { "≈ " } else { "" };
        self.ratio.map(|ratio| format!("{mark}{ratio:.2}"))
    }

    /// Such as "118..131".
    pub(crate) fn show_spread(&self, figure: Figure) -> Option<String> {
        let range = self.spread.get(&figure)?;
        let [least, most] = range.map(|value| figure.show(value));
        Some(format!("{least}..{most}"))
    }

    /// A figure, and its quartiles if it was measured in rounds.
    pub(crate) fn with_spread(&self, figure: Figure) -> Option<(f64, [f64; 2])> {
        let value = self.get(figure)?;
        let range = self.spread.get(&figure).copied();
        Some((value, range.unwrap_or([value; 2])))
    }

    /// What [`Row::json`] has made. Ratios are not read: they follow from the figures.
    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let name = value["case"].as_str()?;
        let case = cases::ALL.iter().find(|case| case.name == name)?;
        let mut setting = Setting::default();
        for parameter in Parameter::ALL {
            match &value[parameter.name()] {
                Value::Null => {}
                Value::String(text) => setting = setting.with(parameter, parameter.parse(text)?),
                number => setting = setting.with(parameter, number.as_u64()? as usize),
            }
        }
        let (mut figures, mut spread) = (Sample::new(), Spread::new());
        for figure in Figure::ALL {
            if let Some(number) = value[figure.name()].as_f64() {
                figures.insert(figure, number);
            }
            let range = &value[spread_name(figure)];
            if let (Some(lower), Some(upper)) = (range[0].as_f64(), range[1].as_f64()) {
                spread.insert(figure, [lower, upper]);
            }
        }
        Some(Row {
            case: case.name,
            implementation: value["impl"].as_str()?.parse().ok()?,
            setting,
            figures,
            spread,
            ratio: None,
            is_within_spread: false,
        })
    }

    pub(crate) fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("case".into(), self.case.into());
        object.insert("impl".into(), self.implementation.to_string().into());
        for (parameter, value) in self.setting.iter() {
            let value = match parameter {
                Parameter::Order => parameter.show(value).into(),
                _ => value.into(),
            };
            object.insert(parameter.name().into(), value);
        }
        for (figure, &value) in &self.figures {
            object.insert(figure.name().into(), json!(value));
        }
        for (figure, range) in &self.spread {
            object.insert(spread_name(*figure), json!(range));
        }
        if let Some(ratio) = self.ratio {
            object.insert("ratio".into(), json!(ratio));
            let is_within_spread = json!(self.is_within_spread);
            object.insert("ratio_is_within_spread".into(), is_within_spread);
        }
        Value::Object(object)
    }
}

fn spread_name(figure: Figure) -> String {
    format!("{}_spread", figure.name())
}

/// Whether two ranges have a value in common.
pub(crate) fn overlap(one: [f64; 2], other: [f64; 2]) -> bool {
    one[0] <= other[1] && other[0] <= one[1]
}

/// The figures that are worth a column.
pub(crate) fn columns<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Vec<Figure> {
    let figures = rows.into_iter().flat_map(|row| &row.figures);
    let figures = figures.filter(|(figure, value)| !figure.is_nothing(**value));
    let columns: BTreeSet<_> = figures.map(|(&figure, _)| figure).collect();
    columns.into_iter().collect()
}

/// The rows of one setting, side by side.
pub(crate) fn print_table(case: &Case, setting: &Setting, rows: &[Row]) {
    let columns = columns(rows);
    output::print(format_args!("\n{:<32}", format!("{} {setting}", case.name)));
    for column in &columns {
        output::print(format_args!(" {:>10}", column.heading()));
    }
    let figure = case.compared_by;
    let has_spread = rows.iter().any(|row| row.spread.contains_key(&figure));
    if has_spread {
        output::print(format_args!(" {:>13}", "quartiles"));
    }
    output::line(format_args!(" {:>7}", "ratio"));
    for row in rows {
        output::print(format_args!("  {:<30}", row.implementation));
        for &column in &columns {
            match row.get(column) {
                Some(value) => output::print(format_args!(" {:>10}", column.show(value))),
                None => output::print(format_args!(" {:>10}", "")),
            }
        }
        if has_spread {
            output::print(format_args!(
                " {:>13}",
                row.show_spread(figure).unwrap_or_default()
            ));
        }
        output::line(format_args!(" {:>7}", row.show_ratio().unwrap_or_default()));
    }
}
