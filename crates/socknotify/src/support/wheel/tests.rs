//! The wheel against a sorted map.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::support::wheel::Wheel;

#[derive(Clone, Debug)]
enum Step {
    Set(u32, u64),
    Unset(u32),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    // Times of every size, and those around the ends of levels.
    let time = prop_oneof![
        0..70_u64,
        (0..40_u32).prop_map(|bits| 1 << bits),
        (1..40_u32).prop_map(|bits| (1 << bits) - 1),
        0..20_000_u64,
    ];
    prop_oneof![
        4 => (0..12_u32, time.clone()).prop_map(|(index, at)| Step::Set(index, at)),
        1 => (0..12_u32).prop_map(Step::Unset),
        3 => time.prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_time_comes_once_and_none_early_or_late(
        steps in proptest::collection::vec(step(), 1..60)
    ) {
        let mut wheel = Wheel::new();
        let mut model = BTreeMap::new();
        let mut now = 0;
        for step in steps {
            match step {
                Step::Set(index, after) => {
                    wheel.set(index, now + after);
                    model.insert(index, (now + after).max(now + 1));
                }
                Step::Unset(index) => {
                    wheel.unset(index);
                    model.remove(&index);
                }
                Step::Pass(time) => {
                    now += time;
                    let mut over = Vec::new();
                    wheel.advance(now, |index| over.push(index));
                    over.sort_unstable();
                    let mut expected: Vec<_> = model
                        .iter()
                        .filter(|&(_, &at)| at <= now)
                        .map(|(&index, _)| index)
                        .collect();
                    expected.sort_unstable();
                    prop_assert_eq!(&over, &expected);
                    model.retain(|_, at| *at > now);
                }
            }
            let earliest = model.values().min().copied();
            match (wheel.next(), earliest) {
                (None, None) => {}
                (Some(next), Some(earliest)) => {
                    prop_assert!(now < next && next <= earliest, "{} {}", next, earliest);
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
