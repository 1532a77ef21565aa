//! `realizar serve`: models behind HTTP.
//!
//! `model` has the options of a model and loads it, `several` finds the models of a server that has more than one, and `file` reads
//! the models of a file.

mod file;
mod model;
mod several;

use crate::args::{ModelPlace, RARE, keys_of};
use crate::command::Cli;
use crate::logging::{ALWAYS, LogFormat};
use crate::output;
use crate::sockets::Sockets;
use anyhow::{Result, anyhow, bail};
use clap::{ArgGroup, ArgMatches, Args, ValueHint};
use model::{ModelOptions, Ready};
use realizar_server::{Config, Ended, Models};
use several::SeveralOptions;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The heading of options on who may ask, and where.
const ACCESS: &str = "Address and access";

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("keys").multiple(true))]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    model: ModelPlace,
    /// Name under which clients ask for the model; may be given several times. By default its own.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["models_dir", "hub_cache"])]
    served_name: Vec<String>,
    /// Name or address to listen at; 0.0.0.0 takes requests from everywhere. May be given several times.
    #[arg(long, help_heading = ACCESS, default_value = "127.0.0.1")]
    host: Vec<String>,
    /// Port to listen at; 0 takes any free one.
    #[arg(long, help_heading = ACCESS, default_value_t = 8080)]
    port: u16,
    /// Key that clients must show; may be given several times. By default nobody is asked.
    #[arg(long, help_heading = ACCESS, group = "keys", value_name = "KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    api_key: Vec<String>,
    /// File with such a key on each line.
    #[arg(long, help_heading = ACCESS, group = "keys", value_name = "FILE", value_hint = ValueHint::FilePath)]
    api_key_file: Vec<PathBuf>,
    /// Origin whose web pages may use the server, or *; may be given several times.
    #[arg(long, help_heading = ACCESS, value_name = "ORIGIN")]
    cors: Vec<String>,
    /// Name by which clients may address the server, besides localhost; may be given several times. Without it, all names are answered,
    /// except on loopback without --api-key.
    #[arg(long, help_heading = ACCESS, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    allowed_host: Vec<String>,
    #[command(flatten)]
    several: SeveralOptions,
    #[command(flatten)]
    options: ModelOptions,
    /// Clients with different keys share no cached prefixes.
    #[arg(long, help_heading = RARE, hide_short_help = true, requires = "keys")]
    salt_by_key: bool,
    /// Size of a request at most.
    #[arg(long, help_heading = RARE, hide_short_help = true, value_name = "SIZE", default_value = "8M", value_parser = size)]
    max_body: usize,
    /// Memory for the bodies of all requests that are still arriving.
    #[arg(long, help_heading = RARE, hide_short_help = true, value_name = "SIZE", default_value = "128M", value_parser = size)]
    body_memory: usize,
    /// How long a client may take to send the headers of a request, and again its body.
    #[arg(long, help_heading = RARE, hide_short_help = true, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    read_timeout: Duration,
    /// How long a client may read nothing of its answer.
    #[arg(long, help_heading = RARE, hide_short_help = true, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    write_timeout: Duration,
    /// Connections at one time; more wait to be accepted.
    #[arg(long, help_heading = RARE, hide_short_help = true, value_name = "N", default_value_t = 16384, value_parser = positive)]
    max_connections: usize,
    /// Objects of JSON schemas that do not mention additionalProperties may have further properties, as the standard says.
    #[arg(long, help_heading = RARE, hide_short_help = true)]
    open_schemas: bool,
    /// Memory for responses of /v1/responses that later requests may go on after; 0 stores none.
    #[arg(long, help_heading = RARE, hide_short_help = true, value_name = "SIZE", default_value = "64M", value_parser = size)]
    response_memory: usize,
    /// Leaves the line x-anthropic-billing-header in the system prompts of Claude Code; it differs from request to request, so that no
    /// prefix of a prompt is found in the cache.
    #[arg(long, help_heading = RARE, hide_short_help = true)]
    keep_billing_header: bool,
    /// How long compiling the format of one answer (a schema, pattern, grammar or tools) may take.
    #[arg(long, help_heading = RARE, hide_short_help = true, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    format_timeout: Duration,
    /// How long SIGTERM or Ctrl-C lets answers finish; a second one ends at once.
    #[arg(long, help_heading = RARE, hide_short_help = true, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    drain_seconds: Duration,
    /// End at once when stdin ends: for programs that start a server for themselves.
    #[arg(long, help_heading = RARE, hide_short_help = true, hide = true)]
    until_stdin_ends: bool,
    /// Collector of OpenTelemetry, such as http://localhost:4318, to which a span of each request is sent over OTLP/HTTP.
    #[arg(long, help_heading = RARE, hide_short_help = true, value_name = "URL")]
    otlp: Option<String>,
    /// Unix socket by which one server follows another without losing a request: once its model is loaded, a server takes over the
    /// addresses of the one that runs with the same path, if there is one, and offers them to the next.
    #[arg(long, help_heading = RARE, hide_short_help = true, value_name = "PATH")]
    takeover: Option<PathBuf>,
}

pub(crate) fn run(args: &ServeArgs, given: &ArgMatches, cli: &Cli) -> Result<()> {
    let sockets = Sockets::new(args.takeover.as_deref())?;
    if args.until_stdin_ends {
        std::thread::spawn(|| {
            drop(std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
            std::process::exit(0);
        });
    }
    let config = Config { keeps_sockets: sockets.are_kept(), ..config(args)? };
    let names = names(args);
    let tables =
        cli.config.as_deref().map(file::models).transpose().map_err(|why| anyhow!(why))?.unwrap_or_default();
    let (models, name, about) = match !tables.is_empty() || args.several.is_asked_for() {
        false => {
            let Ready { model, about } = args.options.load(args.model.get(), args.write_timeout, 1, None)?;
            (Models::one(names.clone(), model)?, names.join(", "), about)
        }
        true => {
            let (models, n) = args.several.models(tables, &args.model, names, given, args.write_timeout)?;
            (
                models,
                format!("a server with {n} models"),
                vec!["models are loaded when they are asked for".to_owned()],
            )
        }
    };
    let (server, _offer) = sockets.listen(models, config)?;
    say_ready(&name, server.addresses(), &about, cli.log_format);
    match server.run()? {
        Ended::Drained => Ok(()),
        Ended::AtOnce => bail!("stopped at once, as told by a second signal"),
    }
}

/// Errors: a file of keys cannot be read or has none.
fn config(args: &ServeArgs) -> Result<Config> {
    let mut api_keys = args.api_key.clone();
    for file in &args.api_key_file {
        api_keys.extend(keys_of(file)?);
    }
    Ok(Config {
        hosts: args.host.clone(),
        port: args.port,
        api_keys,
        salt_by_key: args.salt_by_key,
        cors: args.cors.clone(),
        allowed_hosts: args.allowed_host.clone(),
        max_body: args.max_body,
        body_memory: args.body_memory,
        drain: args.drain_seconds,
        keeps_sockets: false,
        header_timeout: args.read_timeout,
        body_timeout: args.read_timeout,
        write_timeout: args.write_timeout,
        max_connections: args.max_connections,
        otlp: args.otlp.clone(),
        open_schemas: args.open_schemas,
        response_memory: args.response_memory,
        keep_billing_header: args.keep_billing_header,
        format_timeout: args.format_timeout,
        longest_encoder_step: Config::default().longest_encoder_step,
    })
}

/// Says that the server is ready: where, and what else is worth knowing, line by line.
fn say_ready(name: &str, addresses: &[SocketAddr], about: &[String], format: LogFormat) {
    let urls: Vec<String> = addresses.iter().map(|address| format!("http://{address}")).collect();
    match format {
        LogFormat::Text => {
            let urls = urls.join(" and ");
            output::note(&format!(
                "{name} is ready at {urls}: open it in a browser to chat\n{}\n",
                about.join("\n")
            ));
        }
        LogFormat::Json => {
            let (urls, about) = (urls.join(" "), about.join("; "));
            tracing::info!(target: ALWAYS, name, urls, about, "ready");
        }
    }
}

fn names(args: &ServeArgs) -> Vec<String> {
    if !args.served_name.is_empty() {
        return args.served_name.clone();
    }
    vec![args.model.get().served_name()]
}

/// A number of bytes: 4096, 512K, 100M, 4G; KiB, MiB and GiB are the same units.
fn size(text: &str) -> Result<usize, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let shift = match text[end..].to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err("expected a number of bytes such as 512M or 4G".to_owned()),
    };
    let number: f64 = text[..end].parse().map_err(|_| "expected a number of bytes such as 512M or 4G")?;
    let bytes = number * (1u64 << shift) as f64;
    if bytes >= 1.0 && bytes < (1u64 << 60) as f64 {
        Ok(bytes as usize)
    } else {
        Err("expected at least 1 byte".to_owned())
    }
}

pub(crate) fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or_else(|| "expected a number of at least 1".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|e| e.to_string()).and_then(|d| match d.as_secs() {
        // Later than that, times could not be added up.
        0..=31_536_000 => Ok(d),
        _ => Err("expected at most a year".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, Command, FromArgMatches};
    use std::collections::HashMap;

    fn command() -> Command {
        ServeArgs::augment_args(Command::new("serve"))
    }

    #[test]
    fn defaults_are_those_of_the_library() {
        let args = ServeArgs::from_arg_matches(&command().get_matches_from(["serve"])).unwrap();
        assert_eq!(config(&args).unwrap(), Config::default());
    }

    #[test]
    fn the_documents_state_all_options_and_their_defaults() {
        let page = include_str!("../../../../docs/serving.md");
        let mut defaults = HashMap::new();
        for arg in command().get_arguments().filter(|arg| !arg.is_hide_set()) {
            let Some(name) = arg.get_long() else { continue };
            let is_there =
                |cell: &str| [' ', '`'].iter().any(|end| cell.contains(&format!("`--{name}{end}")));
            let mut rows = page.lines().map(|line| line.trim_start_matches("| ").split(" | "));
            let cells = rows.find_map(|mut cells| is_there(cells.next()?).then_some(cells));
            let mut cells = cells.unwrap_or_else(|| panic!("docs/serving.md lacks --{name}"));
            if let Some(default) =
                arg.get_default_values().first().filter(|_| arg.get_action().takes_values())
            {
                let default = default.to_str().unwrap();
                assert_eq!(
                    cells.next().unwrap_or_default().trim_matches('`'),
                    default,
                    "--{name} in docs/serving.md"
                );
                defaults.insert(name.to_owned(), default.to_owned());
            }
        }
        // There a limit stands behind its option, as 16,384 or 8 MiB.
        let page = include_str!("../../../../SECURITY.md");
        let mut n_limits = 0;
        for option in
            page.lines().filter(|line| line.starts_with("| ")).flat_map(|row| row.split("`--").skip(1))
        {
            let Some((name, limit)) = option.split_once("`, ") else { continue };
            let mut words = limit.split([' ', ';']);
            let number = words.next().unwrap().replace(',', "");
            let unit = if words.next() == Some("MiB") { "M" } else { "" };
            assert_eq!(Some(&format!("{number}{unit}")), defaults.get(name), "--{name} in SECURITY.md");
            n_limits += 1;
        }
        assert_eq!(n_limits, 8);
    }

    #[test]
    fn sizes_are_read_in_the_usual_units() {
        for (text, bytes) in [
            ("4096", 4096),
            ("1k", 1024),
            ("1.5M", 3 << 19),
            ("2G", 2 << 30),
            ("3GiB", 3 << 30),
            ("1mb", 1 << 20),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "G", "-1", "1x", "0", "1e9", "9999999999T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["", "-1", "NaN", "inf", "1e30", "1e9"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
