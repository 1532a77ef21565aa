//! Which units of one kind, cache blocks or slots, are free, which are used and by how many, and which only keep old contents for reuse.
//!
//! Every unit is in exactly one state: free (nothing of value), in use (referenced by at least one sequence), or idle (referenced by
//! none but listed in the prefix cache). The pool keeps idle units in the order of their last use.

/// The states of all units of a kind.
#[derive(Debug)]
pub(crate) struct Pool {
    units: Vec<Unit>,
    free: Vec<u32>,
    /// Ends of the list of idle units, the longest unused first.
    oldest: Option<u32>,
    newest: Option<u32>,
    n_idle: usize,
}

#[derive(Clone, Debug, Default)]
struct Unit {
    refs: u32,
    cached: bool,
    /// When it became idle, if it is.
    idle_since: u64,
    /// Neighbours in the list of idle units.
    older: Option<u32>,
    newer: Option<u32>,
}

impl Pool {
    /// All of `n` units are free.
    pub(crate) fn new(n: usize) -> Self {
        Self {
            units: vec![Unit::default(); n],
            // Popped from the end: low numbers first.
            free: (0..n as u32).rev().collect(),
            oldest: None,
            newest: None,
            n_idle: 0,
        }
    }

    /// All units.
    pub(crate) fn len(&self) -> usize {
        self.units.len()
    }

    /// Units that hold nothing of value.
    pub(crate) fn n_free(&self) -> usize {
        self.free.len()
    }

    /// Units that only the prefix cache knows.
    pub(crate) fn n_idle(&self) -> usize {
        self.n_idle
    }

    /// Units that sequences reference.
    pub(crate) fn n_in_use(&self) -> usize {
        self.len() - self.free.len() - self.n_idle
    }

    /// Whether a write to the unit would be seen by others: another sequence or the prefix cache.
    pub(crate) fn is_shared(&self, unit: u32) -> bool {
        let u = &self.units[unit as usize];
        u.refs > 1 || u.cached
    }

    /// Hands out a free unit, with one reference.
    pub(crate) fn take_free(&mut self) -> Option<u32> {
        let unit = self.free.pop()?;
        self.units[unit as usize].refs = 1;
        Some(unit)
    }

    /// The unit that is idle for longest, and since when.
    pub(crate) fn longest_idle(&self) -> Option<(u64, u32)> {
        self.oldest.map(|unit| (self.units[unit as usize].idle_since, unit))
    }

    /// When a unit became idle, if it is.
    pub(crate) fn idle_since(&self, unit: u32) -> Option<u64> {
        let u = &self.units[unit as usize];
        (u.refs == 0 && u.cached).then_some(u.idle_since)
    }

    /// Adds a reference to a unit that is in use or idle.
    pub(crate) fn retain(&mut self, unit: u32) {
        let u = &self.units[unit as usize];
        assert!(u.refs > 0 || u.cached, "unit {unit} is free and cannot be shared");
        if u.refs == 0 {
            self.unlink(unit);
        }
        self.units[unit as usize].refs += 1;
    }

    /// Drops a reference at time `now`, which never decreases.
    pub(crate) fn release(&mut self, unit: u32, now: u64) {
        let u = &mut self.units[unit as usize];
        assert!(u.refs > 0, "unit {unit} is released more often than it was taken");
        u.refs -= 1;
        match (u.refs, u.cached) {
            (0, true) => self.link_newest(unit, now),
            (0, false) => self.free.push(unit),
            _ => {}
        }
    }

    /// Notes that the prefix cache lists a unit that is in use.
    pub(crate) fn set_cached(&mut self, unit: u32) {
        let u = &mut self.units[unit as usize];
        assert!(u.refs > 0, "unit {unit} is not in use");
        u.cached = true;
    }

    /// Notes that the prefix cache no longer lists a unit. It is free if no sequence references it.
    pub(crate) fn forget(&mut self, unit: u32) {
        let u = &mut self.units[unit as usize];
        assert!(u.cached, "unit {unit} is not cached");
        u.cached = false;
        if u.refs == 0 {
            self.unlink(unit);
            self.free.push(unit);
        }
    }

    /// Makes a unit the last used one, if it is idle.
    pub(crate) fn touch(&mut self, unit: u32, now: u64) {
        let u = &self.units[unit as usize];
        if u.refs == 0 && u.cached {
            self.unlink(unit);
            self.link_newest(unit, now);
        }
    }

    fn link_newest(&mut self, unit: u32, now: u64) {
        let older = self.newest.replace(unit);
        let u = &mut self.units[unit as usize];
        (u.older, u.newer, u.idle_since) = (older, None, now);
        match older {
            Some(o) => self.units[o as usize].newer = Some(unit),
            None => self.oldest = Some(unit),
        }
        self.n_idle += 1;
    }

    fn unlink(&mut self, unit: u32) {
        let Unit { older, newer, .. } = self.units[unit as usize];
        match older {
            Some(o) => self.units[o as usize].newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(n) => self.units[n as usize].older = older,
            None => self.newest = older,
        }
        self.n_idle -= 1;
    }

    /// Says what is wrong if the states contradict each other, the references counted by the caller, or what the prefix cache lists.
    pub(crate) fn check(&self, refs: &[u32], is_cached: impl Fn(u32) -> bool) -> Result<(), String> {
        let mut listed = vec![0u32; self.len()];
        self.free.iter().for_each(|&u| listed[u as usize] += 1);
        let (mut idle, mut at, mut since) = (0, self.oldest, 0);
        while let Some(unit) = at {
            let u = &self.units[unit as usize];
            listed[unit as usize] += 1;
            idle += 1;
            if idle > self.len() || u.idle_since < since {
                return Err(format!("the list of idle units is circular or out of order at {unit}"));
            }
            (at, since) = (u.newer, u.idle_since);
        }
        if idle != self.n_idle {
            return Err(format!("{idle} units are in the list of idle ones but {} are counted", self.n_idle));
        }
        for (i, u) in self.units.iter().enumerate() {
            if u.refs != refs[i] {
                return Err(format!("unit {i} counts {} references but has {}", u.refs, refs[i]));
            }
            if listed[i] != u32::from(u.refs == 0) {
                return Err(format!("unit {i} with {} references is in {} lists", u.refs, listed[i]));
            }
            if u.cached != is_cached(i as u32) {
                return Err(format!("unit {i} is cached: {}, unlike in the prefix cache", u.cached));
            }
        }
        match self.free.iter().find(|&&u| self.units[u as usize].cached) {
            Some(u) => Err(format!("unit {u} is free but listed in the prefix cache")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_units_are_in_the_order_of_their_last_use() {
        let mut pool = Pool::new(3);
        let units: Vec<u32> = (0..3).map(|_| pool.take_free().unwrap()).collect();
        assert_eq!(pool.take_free(), None);
        units.iter().for_each(|&u| pool.set_cached(u));
        for (now, i) in [1, 0, 2].into_iter().enumerate() {
            pool.release(units[i], now as u64);
        }
        assert_eq!((pool.n_free(), pool.n_idle(), pool.n_in_use()), (0, 3, 0));
        pool.retain(units[1]);
        pool.release(units[1], 3); // used again: now the newest
        pool.touch(units[0], 4);
        let mut order = Vec::new();
        while let Some((_, unit)) = pool.longest_idle() {
            order.push(unit);
            pool.forget(unit);
        }
        assert_eq!(order, [units[2], units[1], units[0]]);
        assert_eq!(pool.n_free(), 3);
        pool.check(&[0; 3], |_| false).unwrap();
    }

    #[test]
    fn a_unit_returns_with_its_last_reference() {
        let mut pool = Pool::new(1);
        let u = pool.take_free().unwrap();
        pool.retain(u);
        assert!(pool.is_shared(u));
        pool.release(u, 0);
        assert!(!pool.is_shared(u));
        assert_eq!((pool.n_free(), pool.n_idle()), (0, 0));
        pool.release(u, 1);
        assert_eq!(pool.n_free(), 1);
    }

    #[test]
    fn a_unit_that_is_forgotten_in_use_is_free_after_its_use() {
        let mut pool = Pool::new(1);
        let u = pool.take_free().unwrap();
        pool.set_cached(u);
        pool.forget(u);
        assert_eq!((pool.n_free(), pool.n_in_use()), (0, 1));
        pool.release(u, 0);
        assert_eq!((pool.n_free(), pool.n_idle()), (1, 0));
    }

    #[test]
    #[should_panic(expected = "released more often")]
    fn a_unit_cannot_be_freed_twice() {
        let mut pool = Pool::new(1);
        let u = pool.take_free().unwrap();
        pool.release(u, 0);
        pool.release(u, 1);
    }
}
