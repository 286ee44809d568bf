#include "dock/service/console/command_line.h"

#include <unistd.h>

#include <memory>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "dock/service/console/load.h"
#include "dock/service/console/verbs.h"

namespace tdock::console {
namespace {

using Verb = std::function<absl::Status()>;

constexpr int64_t kMostListed = 1'000'000;

std::string Variable(const Wiring& wiring, absl::string_view name) {
  return wiring.variable ? wiring.variable(std::string(name).c_str()).value_or("") : "";
}

// The environment of the verbs; outlives them.
struct Context {
  const Wiring& wiring;
  std::ostream& out;
  std::vector<std::pair<CLI::App*, Verb>> verbs = {};
  // The error has been printed already.
  bool said = false;
};

CLI::App* AddVerb(CLI::App& app, const char* name, const char* description, absl::string_view example) {
  CLI::App* verb = app.add_subcommand(name, description);
  verb->footer(absl::StrCat("For example:\n  tdock dock ", name, " ", example));
  return verb;
}

// A verb that asks the server of a dock.
template <class Options>
struct Client {
  ConnectOptions server = {};
  Options options = {};
};

template <class Options>
std::shared_ptr<Client<Options>> AddServer(CLI::App* verb) {
  auto client = std::make_shared<Client<Options>>();
  ConnectOptions& server = client->server;
  verb->add_option("--address", server.address,
                   absl::StrCat("Server: HOST:PORT or unix:/PATH; default: the value of ", kAddressVariable,
                                ", or where serve listens by default"));
  verb->add_option("--token-file", server.token_file, "File with the server's token");
  verb->add_option("--tls-ca", server.tls_ca, "CA certificates to verify the server with; turns on TLS");
  verb->add_option("--tls-cert", server.tls_cert, "Client certificate to present to the server");
  verb->add_option("--tls-key", server.tls_key, "Key of that certificate");
  return client;
}

template <class Options>
std::shared_ptr<Client<Options>> AddClient(CLI::App* verb) {
  auto client = AddServer<Options>(verb);
  verb->add_flag("--json", client->options.json, "Print one JSON document");
  return client;
}

// The address of a server that was started without options: its socket, if that exists and these options allow it.
std::string DefaultAddress(const ConnectOptions& options, const Wiring& wiring) {
  const std::string socket = DefaultSocket(Variable(wiring, "XDG_RUNTIME_DIR"), wiring.uid);
  const bool tls = !options.tls_ca.empty() || !options.tls_cert.empty();
  if (!tls && access(socket.c_str(), F_OK) == 0) return absl::StrCat("unix:", socket);
  return ToString(HostPort{"127.0.0.1", kDefaultPort});
}

absl::StatusOr<std::unique_ptr<Dock>> Reach(ConnectOptions server, const Wiring& wiring) {
  if (server.address.empty()) server.address = Variable(wiring, kAddressVariable);
  if (server.address.empty()) server.address = DefaultAddress(server, wiring);
  TDOCK_RETURN_IF_ERROR(Check(server));
  return wiring.connect(server);
}

void AddPing(CLI::App& app, Context& context) {
  CLI::App* verb =
      AddVerb(app, "ping", "Says whether a server answers, and how soon; fails if it does not within --within.",
              "--address 127.0.0.1:7077 --within 2");
  auto client = AddServer<double>(verb);
  client->options = 5;
  verb->add_option("--within", client->options, "Seconds until the answer")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  context.verbs.emplace_back(verb, [client, &context]() -> absl::Status {
    ConnectOptions server = client->server;
    server.reconnect_for = server.answer_within = absl::Seconds(client->options);
    TDOCK_ASSIGN_OR_RETURN(const auto dock, Reach(server, context.wiring));
    const absl::Time asked = Clock::Real().Now();
    TDOCK_RETURN_IF_ERROR(dock->ListPartitions().status());
    context.out << absl::StrFormat("the server answers, within %.3f ms\n",
                                   absl::ToDoubleMilliseconds(Clock::Real().Now() - asked));
    return absl::OkStatus();
  });
}

void AddStatus(CLI::App& app, Context& context) {
  CLI::App* verb =
      AddVerb(app, "status", "Shows the rows, cells and bytes of partitions, and the progress of each consumer.",
              "train --address 127.0.0.1:7077");
  auto client = AddClient<StatusOptions>(verb);
  verb->add_option("PARTITION", client->options.partition,
                   "Partition to show in full; default: all partitions, one line each");
  context.verbs.emplace_back(verb, [client, &context]() -> absl::Status {
    TDOCK_ASSIGN_OR_RETURN(const auto dock, Reach(client->server, context.wiring));
    return PrintStatus(*dock, client->options, context.out);
  });
}

void AddExplain(CLI::App& app, Context& context) {
  CLI::App* verb =
      AddVerb(app, "explain", "Explains why a consumer cannot take more rows: what is missing, and who holds it.",
              "train actor --address unix:/run/user/1000/tdock.sock");
  auto client = AddClient<ExplainOptions>(verb);
  verb->add_option("PARTITION", client->options.partition, "Partition")->required();
  verb->add_option("CONSUMER", client->options.consumer, "Consumer")->required();
  context.verbs.emplace_back(verb, [client, &context]() -> absl::Status {
    TDOCK_ASSIGN_OR_RETURN(const auto dock, Reach(client->server, context.wiring));
    return PrintExplanation(*dock, client->options, context.out);
  });
}

void AddRow(CLI::App& app, Context& context) {
  CLI::App* verb =
      AddVerb(app, "row", "Shows one row: its cells, which consumers put them, and its state for each consumer.",
              "train 4 --address 127.0.0.1:7077");
  auto client = AddClient<RowOptions>(verb);
  verb->add_option("PARTITION", client->options.partition, "Partition")->required();
  verb->add_option("ROW", client->options.row, "Row id")->required();
  context.verbs.emplace_back(verb, [client, &context]() -> absl::Status {
    TDOCK_ASSIGN_OR_RETURN(const auto dock, Reach(client->server, context.wiring));
    return PrintRow(*dock, client->options, context.out);
  });
}

void AddList(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(app, "list", "Lists rows, in the order of their ids.",
                           "train --ready-for actor --having rewards --tag split=hard --limit 20");
  auto client = AddClient<ListOptions>(verb);
  ListRequest& request = client->options.request;
  request.limit = 100;
  auto tags = std::make_shared<std::vector<std::string>>();
  verb->add_option("PARTITION", request.partition, "Partition")->required();
  verb->add_option("--tag", *tags, "Only rows with this NAME=VALUE; may be given more than once")
      ->allow_extra_args(false);
  verb->add_option("--limit", request.limit, "Maximum number of rows")
      ->check(CLI::Range(int64_t{1}, kMostListed))
      ->capture_default_str();
  verb->add_option("--from", request.from, "Only this row and later ones");
  verb->add_option("--ready-for", request.ready_for, "Only rows that are ready for this consumer");
  verb->add_option("--having", request.having, "Only rows with this column ready; may be given more than once")
      ->allow_extra_args(false);
  context.verbs.emplace_back(verb, [client, tags, &context]() -> absl::Status {
    TDOCK_ASSIGN_OR_RETURN(client->options.request.tags, ParseTags("--tag", *tags));
    TDOCK_ASSIGN_OR_RETURN(const auto dock, Reach(client->server, context.wiring));
    return PrintList(*dock, client->options, context.out);
  });
}

struct ClearTexts {
  std::vector<std::string> rows, groups, tags;
};

void AddClear(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(app, "clear", "Removes rows, whatever their state, also from the leases that hold them.",
                           "train --rows 3,7-9");
  auto client = AddClient<ClearOptions>(verb);
  auto texts = std::make_shared<ClearTexts>();
  ClearRequest& request = client->options.request;
  verb->add_option("PARTITION", request.partition, "Partition")->required();
  CLI::Option_group* what = verb->add_option_group("What", "One of these");
  what->add_option("--rows", texts->rows, "Row ids, such as 3,7-9")->allow_extra_args(false);
  what->add_option("--groups", texts->groups, "Group ids, such as 3,7-9")->allow_extra_args(false);
  what->add_option("--tag", texts->tags, "Rows with this NAME=VALUE; if given more than once, rows with all of them")
      ->allow_extra_args(false);
  what->add_flag("--everything", request.everything, "All rows; unseals the partition");
  what->require_option(1);
  verb->add_flag("--yes", client->options.yes, "Confirms --everything");
  context.verbs.emplace_back(verb, [client, texts, &context]() -> absl::Status {
    ClearRequest& asked = client->options.request;
    TDOCK_ASSIGN_OR_RETURN(asked.rows, ParseNumbers("--rows", texts->rows));
    TDOCK_ASSIGN_OR_RETURN(asked.groups, ParseNumbers("--groups", texts->groups));
    TDOCK_ASSIGN_OR_RETURN(asked.tags, ParseTags("--tag", texts->tags));
    TDOCK_ASSIGN_OR_RETURN(const auto dock, Reach(client->server, context.wiring));
    return ClearRows(*dock, client->options, context.out);
  });
}

void AddDrop(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(app, "drop", "Removes a partition and everything in it, such as one that a killed run left.",
                           "train --yes");
  auto client = AddClient<DropOptions>(verb);
  verb->add_option("PARTITION", client->options.partition, "Partition")->required();
  verb->add_flag("--yes", client->options.yes, "Confirms it");
  context.verbs.emplace_back(verb, [client, &context]() -> absl::Status {
    TDOCK_ASSIGN_OR_RETURN(const auto dock, Reach(client->server, context.wiring));
    return DropPartition(*dock, client->options, context.out);
  });
}

void AddLoad(CLI::App& app, Context& context) {
  CLI::App* verb =
      AddVerb(app, "load", "Puts rows for a while, and reports how many per second: a load test for a server.",
              "--address 127.0.0.1:7077 --rows 16 --seconds 5");
  auto client = AddServer<LoadOptions>(verb);
  LoadOptions& options = client->options;
  auto seconds = std::make_shared<double>(absl::ToDoubleSeconds(options.duration));
  verb->add_option("--partition", options.partition, "Created if it does not exist; the rows stay in it")
      ->capture_default_str();
  verb->add_option("--rows", options.rows, "Rows per put")->capture_default_str();
  verb->add_option("--columns", options.columns, "Columns")->capture_default_str();
  verb->add_option("--cell-bytes", options.cell_bytes, "Bytes per cell, a multiple of 4")->capture_default_str();
  verb->add_option("--seconds", *seconds, "How long to put rows")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  context.verbs.emplace_back(verb, [client, seconds, &context]() -> absl::Status {
    client->options.duration = absl::Seconds(*seconds);
    TDOCK_ASSIGN_OR_RETURN(const auto dock, Reach(client->server, context.wiring));
    return Load(*dock, client->options, context.out);
  });
}

// The texts of options that need parsing.
struct ServeTexts {
  std::string listen, socket, memory;
  double drain_seconds = 0;
  double grace_seconds = 0;
  ServeOptions options = {};
};

absl::StatusOr<ServeOptions> Parse(const ServeTexts& texts) {
  ServeOptions options = texts.options;
  options.listen = texts.listen == "none" ? "" : texts.listen;
  options.socket = texts.socket == "none" ? "" : texts.socket;
  options.drain = absl::Seconds(texts.drain_seconds);
  options.session_grace = absl::Seconds(texts.grace_seconds);
  if (!texts.memory.empty()) {
    TDOCK_ASSIGN_OR_RETURN(options.memory_bytes, ParseBytes("--memory", texts.memory));
  }
  TDOCK_RETURN_IF_ERROR(Check(options));
  return options;
}

void AddServe(CLI::App& app, Context& context) {
  CLI::App* verb =
      AddVerb(app, "serve", "Serves a dock to other processes and machines until it receives SIGINT or SIGTERM.",
              "--memory 8GiB --metrics 127.0.0.1:9464");
  auto texts = std::make_shared<ServeTexts>();
  texts->listen = ToString(HostPort{"127.0.0.1", kDefaultPort});
  texts->socket = DefaultSocket(Variable(context.wiring, "XDG_RUNTIME_DIR"), context.wiring.uid);
  texts->drain_seconds = absl::ToDoubleSeconds(texts->options.drain);
  texts->grace_seconds = absl::ToDoubleSeconds(texts->options.session_grace);
  ServeOptions& options = texts->options;
  verb->add_option("--listen", texts->listen, "TCP: HOST:PORT, or none")->capture_default_str();
  verb->add_option("--socket", texts->socket, "Unix socket for clients on this machine: a path, or none")
      ->capture_default_str();
  verb->add_option("--memory", texts->memory,
                   "Memory for cells, such as 512MiB or 8GiB; fragmentation may take as much again. "
                   "Default: no limit");
  verb->add_option("--token-file", options.token_file, "File with the token that clients must present");
  verb->add_option("--tls-cert", options.tls_cert, "Server certificate; turns on TLS for TCP");
  verb->add_option("--tls-key", options.tls_key, "Key of that certificate");
  verb->add_option("--tls-ca", options.tls_ca,
                   "CA certificates; clients must present a certificate signed by one of them");
  verb->add_flag("--insecure", options.insecure, "Serve beyond this machine without authenticating clients");
  verb->add_option("--metrics", options.metrics, "Status page and Prometheus metrics over HTTP: HOST:PORT");
  verb->add_option("--drain", texts->drain_seconds, "Seconds that running calls get to finish when the server stops")
      ->capture_default_str();
  verb->add_option("--session-grace", texts->grace_seconds,
                   "Seconds that a client's session outlives its last connection")
      ->capture_default_str();
  verb->add_option(
      "--owned-folder", options.owned_folder,
      "For programs that start a server: however the server ends, this folder is removed, with the socket and "
      "token file if they are in it; if it cannot start, the reason is printed on standard output");
  context.verbs.emplace_back(verb, [texts, &context]() -> absl::Status {
    const absl::StatusOr<ServeOptions> parsed = Parse(*texts);
    const absl::Status status = parsed.ok() ? context.wiring.serve(*parsed) : parsed.status();
    if (!status.ok() && !texts->options.owned_folder.empty()) {
      context.out << "error " << status.raw_code() << ' ' << absl::CEscape(status.message()) << std::endl;
      context.said = true;
    }
    return status;
  });
}

int ExitOnceWritten(int code, std::ostream& out, std::ostream& err) {
  if (out.flush()) return code;
  err << "tdock dock: cannot write to standard output\n";
  return code != 0 ? code : 1;
}

}  // namespace

int RunCommandLine(int argc, const char* const* argv, const Wiring& wiring, std::ostream& out, std::ostream& err) {
  CLI::App app("Serves a Transfer Dock, and inspects one that is being served.", "tdock dock");
  app.require_subcommand(1);
  app.set_version_flag("--version", wiring.version);
  Context context{wiring, out};
  AddServe(app, context);
  AddPing(app, context);
  AddStatus(app, context);
  AddExplain(app, context);
  AddRow(app, context);
  AddList(app, context);
  AddClear(app, context);
  AddDrop(app, context);
  AddLoad(app, context);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return ExitOnceWritten(app.exit(e, out, err) == 0 ? 0 : 2, out, err);
  }
  for (const auto& [app_verb, verb] : context.verbs) {
    if (!app_verb->parsed()) continue;
    const absl::Status status = verb();
    if (!status.ok() && !context.said) err << "tdock dock " << app_verb->get_name() << ": " << status.message() << "\n";
    return status.ok() ? ExitOnceWritten(0, out, err) : ExitCode(status);
  }
  return 0;
}

}  // namespace tdock::console
