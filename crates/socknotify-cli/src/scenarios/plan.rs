//! What a scenario is going to do, and so what must have happened at its end.

use crate::options::PortOptions;

/// The length of one send, as in Microsoft's programs.
pub(crate) const SEND_LENGTH: usize = 4;

/// Descriptors for what is neither a client's nor open before the start: the listener, the port.
const SPARE_DESCRIPTORS: u64 = 32;

/// One of Microsoft's programs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scenario {
    PollReplacement,
    EdgeTriggeredUdp,
    MultiThreadedTcp,
}

impl Scenario {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Scenario::PollReplacement => "poll-replacement",
            Scenario::EdgeTriggeredUdp => "edge-triggered-udp",
            Scenario::MultiThreadedTcp => "multi-threaded-tcp",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) scenario: Scenario,
    pub(crate) clients: u32,
    pub(crate) sends: u32,
    pub(crate) threads: u32,
    pub(crate) port: PortOptions,
    /// Those that were open before the first scenario.
    pub(crate) open_descriptors: u64,
}

impl Plan {
    /// The bytes that one client sends.
    pub(crate) fn bytes_per_client(&self) -> u64 {
        u64::from(self.sends) * SEND_LENGTH as u64
    }

    /// The bytes that all clients send.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.clients) * self.bytes_per_client()
    }

    /// The registrations that are removed, each with one notification: of a TCP server those of its
    /// connections and its listener, of a UDP server that of its only socket.
    pub(crate) fn removals(&self) -> u64 {
        match self.scenario {
            Scenario::PollReplacement | Scenario::MultiThreadedTcp => u64::from(self.clients) + 1,
            Scenario::EdgeTriggeredUdp => 1,
        }
    }

    /// The packets that the scenario posts itself.
    pub(crate) fn posts(&self) -> u64 {
        match self.scenario {
            Scenario::PollReplacement => 0,
            Scenario::EdgeTriggeredUdp => 1,
            Scenario::MultiThreadedTcp => u64::from(self.threads),
        }
    }

    /// The file descriptors that it takes, with both ends of each connection in this process.
    pub(crate) fn descriptors(&self) -> u64 {
        let per_client = match self.scenario {
            Scenario::PollReplacement | Scenario::MultiThreadedTcp => 2,
            Scenario::EdgeTriggeredUdp => 1,
        };
        self.open_descriptors + u64::from(self.clients) * per_client + SPARE_DESCRIPTORS
    }

    /// A plan for tests.
    #[cfg(test)]
    pub(crate) fn sample(scenario: Scenario, clients: u32) -> Self {
        Plan {
            scenario,
            clients,
            sends: 10,
            threads: 1,
            port: PortOptions::with_concurrency(2),
            open_descriptors: 5,
        }
    }
}
