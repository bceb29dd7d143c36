//! Plots of one figure: lines over a parameter, or bars where there is one value only. A thin line at each
//! median goes from quartile to quartile.

use std::error::Error;
use std::path::Path;

use plotters::coord::ranged1d::SegmentValue;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use socknotify::owned::FileDriver;

use crate::case::Parameter;
use crate::figure::Figure;
use crate::foreign::Library;
use crate::implementation::Implementation;

const SIZE: (u32, u32) = (960, 420);
/// Of the names at the right.
const LEGEND: u32 = 230;
const FONT: &str = "sans-serif";
/// How wide the line from quartile to quartile is.
const SPREAD: u32 = 2;

/// What one implementation found.
pub(crate) struct Series {
    pub(crate) implementation: Implementation,
    pub(crate) points: Vec<Point>,
}

/// A median at one of the horizontal places.
#[derive(Clone, Copy)]
pub(crate) struct Point {
    pub(crate) place: usize,
    pub(crate) value: f64,
    /// The quartiles, or twice the median.
    pub(crate) range: [f64; 2],
}

/// Draw all series over the values of a parameter.
pub(crate) fn lines(
    path: &Path,
    parameter: Parameter,
    values: &[usize],
    figure: Figure,
    series: &[Series],
) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (plot, legend) = root.split_horizontally(SIZE.0 - LEGEND);
    let mut chart = ChartBuilder::on(&plot)
        .margin(12)
        .x_label_area_size(48)
        .y_label_area_size(84)
        .build_cartesian_2d((0..values.len() - 1).into_segmented(), 0.0..top(series))?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(values.len())
        .x_label_formatter(&|place| match place {
            SegmentValue::CenterOf(place) => grouped(values[*place] as f64),
            _ => String::new(),
        })
        .y_label_formatter(&|value| grouped(*value))
        .x_desc(parameter.unit())
        .y_desc(figure.unit())
        .label_style((FONT, 15))
        .axis_desc_style((FONT, 16))
        .draw()?;
    for Series {
        implementation,
        points,
    } in series
    {
        let style = color(*implementation).stroke_width(width(*implementation));
        let at = |place: usize, value: f64| (SegmentValue::CenterOf(place), value.max(0.0));
        let medians = points.iter().map(|it| at(it.place, it.value));
        chart.draw_series(LineSeries::new(medians.clone(), style))?;
        chart.draw_series(medians.map(|point| Circle::new(point, 4, style.filled())))?;
        chart.draw_series(points.iter().map(|it| {
            let ends = it.range.map(|value| at(it.place, value));
            PathElement::new(ends, color(*implementation).stroke_width(SPREAD))
        }))?;
    }

    // The names, in the order in which the lines end.
    let mut names: Vec<_> = series
        .iter()
        .filter_map(|it| Some((it.points.last()?.value, it.implementation)))
        .collect();
    names.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    for (line, (_, implementation)) in (0..).zip(names) {
        let y = 40 + 26 * line;
        let style = color(implementation).stroke_width(width(implementation));
        legend.draw(&PathElement::new([(0, y), (26, y)], style))?;
        legend.draw(&Circle::new((13, y), 4, style.filled()))?;
        let name = implementation.to_string();
        legend.draw(&Text::new(
            name,
            (34, y),
            text(Pos::new(HPos::Left, VPos::Center)),
        ))?;
    }
    root.present()?;
    Ok(())
}

/// Draw a bar for each series, which has one point.
pub(crate) fn bars(path: &Path, figure: Figure, series: &[Series]) -> Result<(), Box<dyn Error>> {
    let height = 90 + 34 * series.len() as u32;
    let root = SVGBackend::new(path, (SIZE.0, height)).into_drawing_area();
    root.fill(&WHITE)?;
    // From the top down.
    let place = |index: usize| series.len() - 1 - index;
    // Room for the figure behind the longest bar.
    let end = top(series) * 1.1;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .margin_right(30)
        .x_label_area_size(48)
        .y_label_area_size(LEGEND)
        .build_cartesian_2d(0.0..end, (0..series.len() - 1).into_segmented())?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|value| grouped(*value))
        .y_labels(series.len())
        .y_label_formatter(&|at| match at {
            SegmentValue::CenterOf(at) => series[place(*at)].implementation.to_string(),
            _ => String::new(),
        })
        .x_desc(figure.unit())
        .label_style((FONT, 15))
        .axis_desc_style((FONT, 16))
        .draw()?;
    for (index, it) in series.iter().enumerate() {
        let Some(&Point { value, range, .. }) = it.points.first() else {
            continue;
        };
        let corners = [
            (0.0, SegmentValue::Exact(place(index))),
            (value, SegmentValue::Exact(place(index) + 1)),
        ];
        let mut bar = Rectangle::new(corners, color(it.implementation).filled());
        bar.set_margin(5, 5, 0, 0);
        chart.draw_series([bar])?;
        let ends = range.map(|value| (value.max(0.0), SegmentValue::CenterOf(place(index))));
        chart.draw_series([PathElement::new(ends, BLACK.stroke_width(SPREAD))])?;
        let at = (
            value.max(range[1]).max(0.0),
            SegmentValue::CenterOf(place(index)),
        );
        let style = text(Pos::new(HPos::Left, VPos::Center));
        let label = EmptyElement::at(at) + Text::new(grouped(value), (8, 0), style);
        chart.draw_series([label])?;
    }
    root.present()?;
    Ok(())
}

fn text(position: Pos) -> TextStyle<'static> {
    TextStyle::from((FONT, 15)).pos(position)
}

/// The end of the axis of values.
fn top(series: &[Series]) -> f64 {
    let points = series.iter().flat_map(|it| it.points.iter());
    let most = points
        .map(|it| it.value.max(it.range[1]))
        .fold(0.0, f64::max);
    if most > 0.0 { most * 1.05 } else { 1.0 }
}

/// With thousands set apart.
pub(crate) fn grouped(value: f64) -> String {
    if value.abs() < 10.0 && value.fract() != 0.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::from(if value <= -0.5 { "−" } else { "" });
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn width(implementation: Implementation) -> u32 {
    if implementation.is_ours() { 4 } else { 2 }
}

/// The same in every plot. Ours are warm.
fn color(implementation: Implementation) -> RGBColor {
    match implementation {
        Implementation::Socknotify(_) | Implementation::Wheel => RGBColor(214, 39, 40),
        Implementation::Files(FileDriver::Threads) => RGBColor(250, 195, 60),
        Implementation::Owned(_) | Implementation::Files(_) => RGBColor(245, 150, 60),
        Implementation::Drained(_) => RGBColor(250, 195, 60),
        Implementation::Eager(_) | Implementation::Unwatched(_) => RGBColor(150, 90, 60),
        Implementation::Serve(_, ..16) => RGBColor(250, 195, 60),
        Implementation::Serve(_, 16..64) => RGBColor(245, 150, 60),
        Implementation::Serve(_, _) => RGBColor(214, 39, 40),
        Implementation::ServeBlocking(_) => RGBColor(150, 90, 60),
        Implementation::Threads => RGBColor(20, 60, 130),
        Implementation::TokioSpawning => RGBColor(130, 130, 130),
        Implementation::Foreign(Library::Libuv) => RGBColor(120, 80, 170),
        Implementation::Foreign(Library::Libevent) => RGBColor(180, 140, 210),
        Implementation::RawEpoll => RGBColor(20, 60, 130),
        Implementation::RawEpollOnePoll => RGBColor(80, 130, 200),
        Implementation::RawEpollEach => RGBColor(130, 175, 235),
        Implementation::RawUring => RGBColor(20, 150, 130),
        Implementation::Polling | Implementation::Heap => RGBColor(130, 130, 130),
        Implementation::Mio | Implementation::Tree => RGBColor(110, 160, 60),
        Implementation::Pread => RGBColor(20, 60, 130),
        Implementation::Tokio | Implementation::Eventfd => RGBColor(40, 40, 40),
        Implementation::Bare | Implementation::TokioAtOnce => RGBColor(190, 190, 190),
    }
}
