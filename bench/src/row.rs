//! [`Row`]: what is known of one implementation in one setting.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::case::{Case, Setting};
use crate::figure::{Figure, Sample};
use crate::implementation::Implementation;

pub(crate) struct Row {
    pub(crate) case: &'static str,
    pub(crate) implementation: Implementation,
    pub(crate) setting: Setting,
    pub(crate) figures: Sample,
    /// Of the figure that the case is judged by, to the reference's.
    pub(crate) ratio: Option<f64>,
}

impl Row {
    pub(crate) fn get(&self, figure: Figure) -> Option<f64> {
        self.figures.get(&figure).copied()
    }

    pub(crate) fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("case".into(), self.case.into());
        object.insert("impl".into(), self.implementation.to_string().into());
        for (parameter, value) in self.setting.iter() {
            object.insert(parameter.name().into(), value.into());
        }
        for (figure, &value) in &self.figures {
            object.insert(figure.name().into(), json!(value));
        }
        if let Some(ratio) = self.ratio {
            object.insert("ratio".into(), json!(ratio));
        }
        Value::Object(object)
    }
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
    print!("\n{:<28}", format!("{} {setting}", case.name));
    for column in &columns {
        print!(" {:>10}", column.heading());
    }
    println!(" {:>7}", "ratio");
    for row in rows {
        print!("  {:<26}", row.implementation);
        for &column in &columns {
            match row.get(column) {
                Some(value) => print!(" {:>10}", column.show(value)),
                None => print!(" {:>10}", ""),
            }
        }
        match row.ratio {
            Some(ratio) => println!(" {ratio:>7.2}"),
            None => println!(),
        }
    }
}
