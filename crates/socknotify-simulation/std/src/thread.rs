//! Threads of the simulation, which are threads of the system that run one at a time.

use std::io;
use std::num::NonZero;
use std::os::unix::thread::JoinHandleExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
pub use std::thread::*;
use std::time::Duration;

use crate::simulation::{self, Begun, On};

pub struct Builder(std::thread::Builder);

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    pub fn new() -> Self {
        Builder(std::thread::Builder::new())
    }

    pub fn name(self, name: String) -> Self {
        Builder(self.0.name(name))
    }

    pub fn stack_size(self, size: usize) -> Self {
        Builder(self.0.stack_size(size))
    }

    pub fn spawn<F, T>(self, run: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let begun = simulation::begin(0)?;
        let index = begun.index();
        let inner = self.0.spawn(move || run_as(begun, run))?;
        simulation::point();
        Ok(JoinHandle { inner, index })
    }

    pub fn spawn_scoped<'scope, 'env, F, T>(
        self,
        scope: &'scope Scope<'scope, 'env>,
        run: F,
    ) -> io::Result<ScopedJoinHandle<'scope, T>>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let begun = simulation::begin((&raw const *scope).addr())?;
        let handle = self.0.spawn_scoped(scope, move || run_as(begun, run))?;
        simulation::point();
        Ok(handle)
    }
}

fn run_as<T>(begun: Begun, run: impl FnOnce() -> T) -> T {
    begun.enter();
    let outcome = catch_unwind(AssertUnwindSafe(run));
    simulation::finish(outcome.is_err());
    outcome.unwrap_or_else(|panic| resume_unwind(panic))
}

pub fn spawn<F, T>(run: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    // None of those that are to fail.
    let begun = simulation::begin_always();
    let index = begun.index();
    let inner = std::thread::spawn(move || run_as(begun, run));
    simulation::point();
    JoinHandle { inner, index }
}

#[derive(Debug)]
pub struct JoinHandle<T> {
    inner: std::thread::JoinHandle<T>,
    index: usize,
}

impl<T> JoinHandle<T> {
    pub fn join(self) -> Result<T> {
        simulation::block(On::End(self.index), None);
        self.inner.join()
    }

    pub fn is_finished(&self) -> bool {
        simulation::point();
        simulation::has_finished(self.index)
    }
}

impl<T> JoinHandleExt for JoinHandle<T> {
    fn as_pthread_t(&self) -> libc::pthread_t {
        self.inner.as_pthread_t()
    }

    fn into_pthread_t(self) -> libc::pthread_t {
        self.inner.into_pthread_t()
    }
}

/// Its threads are those of [`Builder::spawn_scoped`].
pub fn scope<'env, F, T>(run: F) -> T
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
{
    std::thread::scope(|scope| {
        let outcome = catch_unwind(AssertUnwindSafe(|| run(scope)));
        simulation::block(On::Scope((&raw const *scope).addr()), None);
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    })
}

pub fn sleep(time: Duration) {
    simulation::block(On::Time, Some(simulation::after(time)));
}

pub fn yield_now() {
    simulation::switch();
}

/// As many as the simulation says.
pub fn available_parallelism() -> io::Result<NonZero<usize>> {
    Ok(simulation::processors())
}
