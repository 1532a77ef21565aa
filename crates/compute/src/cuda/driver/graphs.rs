//! Sequences of launches that are recorded once and replayed.

use super::api::{Driver, Graph};
use super::lock::lock;
use crate::{Error, GraphKey};
use std::collections::HashMap;
use std::result::Result;
use std::sync::Mutex;
use std::thread::{self, ThreadId};

/// Most recorded sequences. Steps that verify drafts have many shapes, most of which come up rarely; when this many are recorded, all are
/// dropped and recorded anew.
const MAX_GRAPHS: usize = 512;

/// The recorded sequences of one GPU, by the thread that recorded them: a graph uses that thread's scratch memory.
#[derive(Default)]
pub(super) struct Graphs(Mutex<HashMap<(ThreadId, GraphKey), Recorded>>);

enum Recorded {
    /// It ran once, which allocated all the scratch memory it needs.
    Ran,
    /// It can be replayed.
    Graph(Graph),
}

impl Graphs {
    /// Runs `f`, or replays what it launched when it was recorded under this key.
    pub(super) fn run<E: From<Error>>(
        &self,
        driver: &dyn Driver,
        key: GraphKey,
        f: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let key = (thread::current().id(), key);
        let mut graphs = lock(&self.0);
        if graphs.len() >= MAX_GRAPHS && !graphs.contains_key(&key) {
            drop_all(driver, graphs.drain().map(|(_, recorded)| recorded));
        }
        match graphs.get(&key) {
            None => {
                f()?;
                graphs.insert(key, Recorded::Ran);
                Ok(())
            }
            Some(Recorded::Ran) => {
                if let Some(graph) = record(driver, f)? {
                    // SAFETY: the operations ran just now with the same tensors and scratch memory, which are all still allocated.
                    let replayed = unsafe { driver.replay(&graph) };
                    graphs.insert(key, Recorded::Graph(graph));
                    replayed?;
                }
                Ok(())
            }
            // SAFETY: tensors used under a key live until `forget` of its owner (`Capture::captured`), scratch memory as long as the GPU.
            Some(Recorded::Graph(graph)) => unsafe { driver.replay(graph).map_err(E::from) },
        }
    }

    /// Drops what was recorded under an owner's keys.
    pub(super) fn forget(&self, driver: &dyn Driver, owner: u64) {
        let gone = lock(&self.0).extract_if(|(_, key), _| key.owner == owner).collect::<Vec<_>>();
        drop_all(driver, gone.into_iter().map(|(_, recorded)| recorded));
    }

    /// Drops everything.
    pub(super) fn clear(&self, driver: &dyn Driver) {
        drop_all(driver, lock(&self.0).drain().map(|(_, recorded)| recorded));
    }
}

/// Records what `f` launches; `None` on a device that cannot record, where `f` has run instead.
fn record<E: From<Error>>(
    driver: &dyn Driver,
    f: &mut dyn FnMut() -> Result<(), E>,
) -> Result<Option<Graph>, E> {
    let mut outcome = Ok(());
    let graph = driver.record(&mut || outcome = f());
    match (outcome, graph) {
        (Ok(()), Ok(None)) => f().map(|()| None),
        (Ok(()), graph) => Ok(graph?),
        (Err(error), graph) => {
            if let Ok(Some(graph)) = graph {
                drop_all(driver, [Recorded::Graph(graph)].into_iter());
            }
            Err(error)
        }
    }
}

fn drop_all(driver: &dyn Driver, recorded: impl Iterator<Item = Recorded>) {
    for recorded in recorded {
        if let Recorded::Graph(graph) = recorded {
            // SAFETY: the graph was taken out of the table or never put there, so nobody replays it again.
            unsafe { driver.forget(graph) }
        }
    }
}
