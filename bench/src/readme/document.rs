//! Blocks of a document: each stands between two comments, `<!-- NAME: … -->` and `<!-- end of NAME -->`.

use super::goals::MET;
use super::tables::LEFT_OUT;

/// Where the contents of a block are.
fn block_in(document: &str, name: &str) -> Option<std::ops::Range<usize>> {
    let begin = document.find(&format!("<!-- {name}: "))?;
    let begin = begin + document[begin..].find("-->")? + "-->".len();
    let end = begin + document[begin..].find(&format!("\n<!-- end of {name} -->"))?;
    Some(begin..end)
}

pub(super) fn replace(document: &mut String, name: &str, text: &str) -> Option<()> {
    let place = block_in(document, name)?;
    document.replace_range(place, &format!("\n\n{text}"));
    Some(())
}

/// The first line that is not as wanted.
pub(super) fn same(found: &str, wanted: &str) -> Result<(), String> {
    let mut wanted_lines = wanted.lines();
    for line in found.lines() {
        match wanted_lines.next() {
            Some(wanted) if line == wanted => {}
            wanted => {
                let wanted = wanted.unwrap_or("the end");
                return Err(format!("found:  {line}\nwanted: {wanted}"));
            }
        }
    }
    match wanted_lines.next() {
        Some(line) => Err(format!("missing: {line}")),
        None => Ok(()),
    }
}

/// The blocks of a document, with a mark in place of each figure.
pub(super) fn shape<'a>(document: &str, blocks: impl Iterator<Item = &'a str>) -> String {
    let mut shape = String::new();
    for name in blocks {
        let block = block_in(document, name).map_or("", |place| &document[place]);
        // Which goals are missed is a figure.
        for line in block.lines().filter(|line| !is_goal(line)) {
            shape += &match line.strip_prefix('|') {
                Some(cells) => line_shape(cells),
                None if line.starts_with("Measured ") => "Measured".to_owned(),
                None if line.starts_with(MET) => MET.to_owned(),
                None => line.to_owned(),
            };
            shape.push('\n');
        }
    }
    shape
}

fn is_goal(line: &str) -> bool {
    line.starts_with('|') && (line.contains("| ≥ ") || line.contains("| ≤ "))
}

fn line_shape(cells: &str) -> String {
    let cells = cells.split('|').map(str::trim).enumerate();
    let cells = cells.map(|(number, cell)| match number > 0 && is_figure(cell) {
        true => "#",
        false => cell,
    });
    cells.collect::<Vec<_>>().join("|")
}

/// Such as "0.71", "≈ 1.02 (0.96 to 1.10)", "3,200 (3,100 to 3,300)".
fn is_figure(cell: &str) -> bool {
    let is_number = |text: &str| text.replace(',', "").parse::<f64>().is_ok();
    let is_range = |text: &str| {
        text.split_once(" to ")
            .is_some_and(|(least, most)| is_number(least) && is_number(most))
    };
    let cell = cell.strip_prefix("≈ ").unwrap_or(cell);
    match cell.split_once(" (") {
        Some((value, range)) => is_number(value) && range.strip_suffix(')').is_some_and(is_range),
        None => cell == LEFT_OUT || is_number(cell) || is_range(cell),
    }
}
