//! The wheel against a sorted map.

use std::collections::BTreeMap;

use crate::support::wheel::Wheel;

/// Times of every size, and those around the ends of levels.
fn time(random: &mut fastrand::Rng) -> u64 {
    match random.u8(..4) {
        0 => random.u64(..70),
        1 => 1 << random.u32(..40),
        2 => (1 << random.u32(1..40)) - 1,
        _ => random.u64(..20_000),
    }
}

#[test]
fn every_time_comes_once_and_none_early_or_late() {
    for seed in 0..4000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut wheel = Wheel::new();
        let mut model = BTreeMap::new();
        let mut now = 0;
        for _ in 0..random.u32(1..60) {
            let index = random.u32(..12);
            match random.u8(..8) {
                0..4 => {
                    let after = time(&mut random);
                    wheel.set(index, now + after);
                    model.insert(index, (now + after).max(now + 1));
                }
                4 => {
                    wheel.unset(index);
                    model.remove(&index);
                }
                _ => {
                    now += time(&mut random);
                    let mut over = Vec::new();
                    wheel.advance(now, |index| over.push(index));
                    over.sort_unstable();
                    let due = model.iter().filter(|&(_, &at)| at <= now);
                    let expected: Vec<_> = due.map(|(&index, _)| index).collect();
                    assert_eq!(over, expected, "seed {seed}");
                    model.retain(|_, at| *at > now);
                }
            }
            match (wheel.next(), model.values().min()) {
                (None, None) => {}
                (Some(next), Some(&earliest)) => {
                    assert!(
                        now < next && next <= earliest,
                        "seed {seed}: {next}, {earliest}"
                    );
                }
                other => panic!("seed {seed}: {other:?}"),
            }
        }
    }
}
