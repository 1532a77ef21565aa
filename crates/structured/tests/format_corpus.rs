//! The formats that the fuzz target begins with, once through what it checks: schemas, regular expressions and grammars of all kinds, and short
//! forms of those that once did harm.

#[path = "../../../fuzz/follow_format.rs"]
mod follow_format;

use follow_format::Follower;
use std::path::Path;

#[test]
fn every_format_of_the_corpus_is_refused_or_can_be_followed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // As much stack as the threads that compile formats have.
    let follow = move || {
        let follower = Follower::new(&root.join("assets/demo.gguf"));
        let files =
            std::fs::read_dir(root.join("fuzz/seeds/formats")).unwrap().map(|entry| entry.unwrap().path());
        let mut n = 0;
        for path in files {
            let name = path.file_name().unwrap().to_str().unwrap();
            let compiled = follower.follow(&std::fs::read_to_string(&path).unwrap());
            assert!(compiled || name.starts_with("hostile"), "{name} is refused");
            n += 1;
        }
        assert!(n > 20, "{n} formats");
    };
    std::thread::Builder::new().stack_size(256 << 20).spawn(follow).unwrap().join().unwrap();
}
