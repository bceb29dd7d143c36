//! Files over HTTP: each request opens a file, which is read and sent.

use std::io::{self, Write};

use socknotify::owned::FileDriver;

use crate::case::{Axis, Case, Effort, Parameter, Setting, Trial};
use crate::cases::load;
use crate::client::{Load, Pace};
use crate::exchange::{Exchange, LARGE_FILE, SMALL_FILE};
use crate::figure::{Figure, Sample};
use crate::implementation::Implementation;
use crate::servers::files::{self, Site};

pub(crate) const CASE: Case = Case {
    name: "files-http",
    about: "files over HTTP, one for each of 16 connections; the port has 4 threads, tokio one for each processor",
    compared_by: Figure::Rate,
    axes: &[
        Axis {
            parameter: Parameter::Cached,
            values: &[1, 0],
            quick: &[1],
        },
        Axis {
            parameter: Parameter::Bytes,
            values: &[SMALL_FILE, LARGE_FILE],
            quick: &[SMALL_FILE],
        },
    ],
    implementations: || {
        use Implementation::*;
        vec![
            Tokio,
            TokioAtOnce,
            Files(FileDriver::IoUring),
            Files(FileDriver::Threads),
        ]
    },
    parts: 1,
    is_counted: false,
    prepare: |setting, effort| Ok(Box::new(FilesHttp::prepare(setting, effort)?)),
};

const CONNECTIONS: usize = 16;

struct FilesHttp {
    directory: tempfile::TempDir,
    is_cached: bool,
    load: Load,
}

impl FilesHttp {
    fn prepare(setting: &Setting, effort: Effort) -> io::Result<Self> {
        let directory = tempfile::tempdir()?;
        let length = setting.get(Parameter::Bytes);
        for number in 0..CONNECTIONS {
            let name = directory.path().join(Site::name(number));
            let mut file = std::fs::File::create(name)?;
            file.write_all(&vec![number as u8; length])?;
            // What is not on the disk stays in memory.
            file.sync_all()?;
        }
        Ok(FilesHttp {
            directory,
            is_cached: setting.get(Parameter::Cached) == 1,
            load: Load {
                connections: CONNECTIONS,
                pace: Pace::Depth(1),
                milliseconds: effort.milliseconds,
                exchange: match length {
                    LARGE_FILE => Exchange::LargeFile,
                    _ => Exchange::SmallFile,
                },
                blocking: 0,
                is_apart: false,
            },
        })
    }
}

impl Trial for FilesHttp {
    fn measure(&mut self, implementation: Implementation) -> io::Result<Option<Sample>> {
        let site = Site::open(self.directory.path(), self.is_cached)?;
        let measured = load::measure_server(self.load, |connections, until| match implementation {
            Implementation::Tokio => files::serve_tokio(site, false, connections, until),
            Implementation::TokioAtOnce => files::serve_tokio(site, true, connections, until),
            Implementation::Files(driver) => files::serve(driver, site, connections, until),
            _ => Err(io::Error::other(format!(
                "{implementation} serves no files"
            ))),
        });
        measured.map(Some)
    }
}
