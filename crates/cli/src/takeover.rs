//! Hands the listening sockets of a running server to its successor, over a Unix socket at a path that both know.
//!
//! The successor connects when it is ready to serve and receives the sockets; it offers them at the path itself, begins to accept, and
//! says so. Only then does the running server stop accepting. The sockets stay open all the time, so no connection is refused.

use anyhow::{Context, Result, bail, ensure};
use realizar_server::{Handle, Server};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg, sockopt,
};
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Sockets that can be passed on at one time.
const MAX_SOCKETS: usize = 32;
/// What comes with the sockets, before their number: the name and the version of this exchange.
const GREETING: [u8; 8] = *b"rlzrsck1";
/// What the successor says when it accepts connections.
const SERVING: u8 = b'S';
/// How long either side may take to answer: nothing is computed meanwhile.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How often to try again when a running server goes away meanwhile, and how long to wait before.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// A running server that has passed on its sockets and still accepts connections.
pub(crate) struct Predecessor {
    stream: UnixStream,
}

impl Predecessor {
    /// Connects to the server that offers its sockets at `path`, and takes them; `None` if there is none.
    ///
    /// Errors: what is at the path is no such server.
    pub(crate) fn at(path: &Path) -> Result<Option<(Self, Vec<TcpListener>)>> {
        if fs::symlink_metadata(path).is_ok_and(|file| !file.file_type().is_socket()) {
            bail!("--takeover {}: this is not a socket; give a path for one", path.display());
        }
        for _ in 0..TRIES {
            let stream = match UnixStream::connect(path) {
                Ok(stream) => stream,
                // Nobody listens; a socket of a process that was killed stays behind.
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                    return Ok(None);
                }
                Err(e) => return Err(e).with_context(|| format!("could not connect to {}", path.display())),
            };
            stream.set_read_timeout(Some(TIMEOUT))?;
            let sockets = receive(&stream)
                .with_context(|| format!("could not take over the sockets offered at {}", path.display()))?;
            if let Some(sockets) = sockets {
                return Ok(Some((Self { stream }, sockets)));
            }
            // It has just been succeeded by another or has ended.
            std::thread::sleep(PAUSE);
        }
        bail!("no server at {} passes on its sockets", path.display())
    }

    /// Tells it that connections are accepted here from now on, and waits until it accepts no more.
    pub(crate) fn succeed(mut self) -> io::Result<()> {
        self.stream.write_all(&[SERVING])?;
        // It may as well be gone by now.
        let _ = self.stream.read(&mut [0]);
        Ok(())
    }
}

/// The sockets of a server, offered to a successor.
pub(crate) struct Offer {
    path: PathBuf,
    /// Device and number of the socket's file.
    file: (u64, u64),
}

impl Offer {
    /// Offers a server's sockets at `path`, in place of a server that did so before.
    ///
    /// Errors: there can be no socket at the path.
    pub(crate) fn new(path: &Path, server: &Server) -> Result<Self> {
        let sockets = server.sockets()?;
        ensure!(
            sockets.len() <= MAX_SOCKETS,
            "at most {MAX_SOCKETS} addresses can be passed on by --takeover"
        );
        // Made under another name, so that there is always one at the path.
        let mut unfinished = path.to_owned().into_os_string();
        unfinished.push(format!(".{}", std::process::id()));
        let unfinished = PathBuf::from(unfinished);
        let make = || {
            let listener = UnixListener::bind(&unfinished)?;
            // Whoever connects can take the sockets.
            fs::set_permissions(&unfinished, Permissions::from_mode(0o600))?;
            let file = fs::metadata(&unfinished)?;
            fs::rename(&unfinished, path)?;
            io::Result::Ok((listener, (file.dev(), file.ino())))
        };
        let made = make().inspect_err(|_| drop(fs::remove_file(&unfinished)));
        let (listener, file) = made.with_context(|| format!("could not listen at {}", path.display()))?;
        let handle = server.handle();
        std::thread::Builder::new()
            .name("takeover".into())
            .spawn(move || offer(&listener, &sockets, &handle))?;
        Ok(Self { path: path.to_owned(), file })
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        // A successor's socket stays.
        if fs::symlink_metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.file) {
            drop(fs::remove_file(&self.path));
        }
    }
}

/// Gives the sockets to whoever connects, until one says that it serves.
fn offer(listener: &UnixListener, sockets: &[TcpListener], handle: &Handle) {
    for stream in listener.incoming() {
        let succeeded = stream.and_then(|mut stream| {
            stream.set_read_timeout(Some(TIMEOUT))?;
            send(&stream, sockets)?;
            let mut said = [0];
            stream.read_exact(&mut said)?;
            if said != [SERVING] {
                return Err(io::Error::new(ErrorKind::InvalidData, "it said something else"));
            }
            tracing::info!("another process has taken over");
            handle.succeeded();
            // It may have read enough.
            let _ = stream.write_all(&[SERVING]);
            Ok(())
        });
        match succeeded {
            Ok(()) => return,
            Err(error) => tracing::warn!(%error, "a process that wanted to take over did not"),
        }
    }
}

fn send(stream: &UnixStream, sockets: &[TcpListener]) -> io::Result<()> {
    let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&sockets)), "there is space for {MAX_SOCKETS}");
    let count = [sockets.len() as u8];
    let message = [IoSlice::new(&GREETING), IoSlice::new(&count)];
    match sendmsg(stream, &message, &mut control, SendFlags::NOSIGNAL)? {
        n if n == GREETING.len() + 1 => Ok(()),
        _ => Err(ErrorKind::WriteZero.into()),
    }
}

/// The sockets that come over the stream; `None` if it ends before.
fn receive(stream: &UnixStream) -> Result<Option<Vec<TcpListener>>> {
    let mut message = [0; GREETING.len() + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let n_read = match recvmsg(stream, &mut [IoSliceMut::new(&mut message)], &mut control, flags) {
        Ok(received) => received.bytes,
        Err(rustix::io::Errno::CONNRESET) => 0,
        Err(error) => return Err(error.into()),
    };
    if n_read == 0 {
        return Ok(None);
    }
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
        _ => None,
    });
    let sockets: Vec<OwnedFd> = rights.flatten().collect();
    let is_ours = n_read == message.len() && message.starts_with(&GREETING);
    ensure!(is_ours, "what listens there is not a realizar server of a version that can pass on its sockets");
    ensure!(
        !sockets.is_empty() && sockets.len() == usize::from(message[GREETING.len()]),
        "sockets are missing"
    );
    sockets.into_iter().map(listening).collect::<Result<_>>().map(Some)
}

/// A TCP socket that listens.
fn listening(socket: OwnedFd) -> Result<TcpListener> {
    ensure!(sockopt::socket_acceptconn(&socket)?, "a socket does not listen");
    let socket = TcpListener::from(socket);
    socket.local_addr().context("a socket is not one of TCP")?;
    Ok(socket)
}
