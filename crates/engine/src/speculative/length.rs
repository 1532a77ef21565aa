//! How many guesses are worth their cost.

/// What guesses cost, in steps that compute one token of one sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeculationCosts {
    /// To verify one: what each further row adds to a step.
    pub row: f32,
    /// To make one.
    pub guess: f32,
}

/// A sequence's history of right and wrong guesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftLength {
    /// How likely the next guess is right if those before it were: an average in which the past fades.
    rate: f32,
    /// Tokens generated since a guess was verified.
    n_idle: u32,
}

/// Share of the newest observation in the average.
const NEWEST: f32 = 0.125;

/// After so many tokens without a guess, one is tried: texts change.
const RETRY: u32 = 32;

impl Default for DraftLength {
    /// Hopes for the best: a few wrong guesses teach otherwise.
    fn default() -> Self {
        Self { rate: 0.8, n_idle: 0 }
    }
}

impl DraftLength {
    /// Takes note of how many of `n` guesses were right.
    pub(crate) fn observe(&mut self, n: usize, n_accepted: usize) {
        for i in 0..n.min(n_accepted + 1) {
            let right = if i < n_accepted { 1.0 } else { 0.0 };
            self.rate += (right - self.rate) * NEWEST;
        }
        self.n_idle = 0;
    }

    /// Takes note of a token without guesses.
    pub(crate) fn skip(&mut self) {
        self.n_idle = self.n_idle.saturating_add(1);
    }

    /// How many guesses to verify in a step that `n_others` sequences share, at most `limit`.
    ///
    /// A further guess pays as long as the tokens that it may bring, per cost, are not fewer than what the step yields without it:
    /// with the rate `a`, the `k`-th guess brings `a^k` tokens. Alone, a sequence may guess far; the more others share the step, the
    /// less a row that may be in vain is worth, and in a full batch only guesses that are nearly sure are left.
    pub(crate) fn choose(&self, n_others: usize, costs: SpeculationCosts, limit: usize) -> usize {
        let others = n_others as f32;
        let per_guess = costs.row + costs.guess;
        let (mut tokens, mut cost) = (1.0 + others, 1.0 + others * costs.row);
        if cost < tokens * per_guess {
            return 0; // even guesses that are always right cost more than they bring
        }
        let mut gain = 1.0;
        let mut n = 0;
        while n < limit {
            gain *= self.rate;
            if gain * cost < tokens * per_guess {
                break;
            }
            (tokens, cost) = (tokens + gain, cost + per_guess);
            n += 1;
        }
        if self.n_idle >= RETRY { n.max(1).min(limit) } else { n }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: SpeculationCosts = SpeculationCosts { row: 0.4, guess: 0.0 };
    const GPU: SpeculationCosts = SpeculationCosts { row: 0.03, guess: 0.0 };

    fn after(n_right: usize, n_wrong: usize) -> DraftLength {
        let mut length = DraftLength::default();
        (0..n_right).for_each(|_| length.observe(1, 1));
        (0..n_wrong).for_each(|_| length.observe(1, 0));
        length
    }

    #[test]
    fn right_guesses_lengthen_and_wrong_ones_shorten() {
        let lengths = [after(40, 0), after(5, 0), after(0, 0), after(0, 3), after(0, 40)];
        let chosen = lengths.map(|l| l.choose(0, GPU, 16));
        assert!(chosen.is_sorted_by(|a, b| a >= b), "{chosen:?}");
        assert_eq!((chosen[0], chosen[4]), (16, 0));
        assert!(
            lengths.iter().all(|l| l.choose(0, CPU, 16) <= l.choose(0, GPU, 16)),
            "dear rows, fewer guesses"
        );
    }

    #[test]
    fn a_full_batch_guesses_less() {
        for costs in [CPU, GPU] {
            let chosen = [0, 3, 10, 100, 1000].map(|n| after(4, 0).choose(n, costs, 16));
            assert!(chosen.is_sorted_by(|a, b| a >= b), "{chosen:?}");
            assert!(chosen[0] > 0 && chosen[4] == 0, "{chosen:?}");
        }
    }

    #[test]
    fn a_costly_proposer_is_asked_for_less() {
        let dear = SpeculationCosts { guess: 0.3, ..GPU };
        let sure = after(40, 0);
        assert!((1..16).contains(&after(4, 0).choose(0, dear, 16)));
        let mut never = sure;
        (0..2 * RETRY).for_each(|_| never.skip());
        assert_eq!(never.choose(0, SpeculationCosts { guess: 2.0, ..GPU }, 16), 0, "a guess costs two steps");
    }

    #[test]
    fn who_guessed_badly_gets_another_chance() {
        let mut length = after(0, 40);
        assert_eq!(length.choose(0, CPU, 8), 0);
        (0..RETRY).for_each(|_| length.skip());
        assert_eq!(length.choose(0, CPU, 8), 1);
        assert_eq!(length.choose(0, CPU, 0), 0);
        (0..30).for_each(|_| length.observe(1, 1));
        assert!(length.choose(0, CPU, 8) > 1);
    }

    #[test]
    fn what_follows_a_wrong_guess_teaches_nothing() {
        let (mut a, mut b) = (DraftLength::default(), DraftLength::default());
        a.observe(8, 2);
        b.observe(3, 2);
        assert_eq!(a.rate, b.rate);
    }
}
