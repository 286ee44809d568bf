#include "core/net/server.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <random>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::net {
namespace {

constexpr int kAcceptedAtOnce = 64;

absl::StatusOr<std::vector<std::string>> CheckExposure(const TcpOptions& options, const Endpoint& endpoint) {
  std::vector<std::string> warnings;
  TDOCK_ASSIGN_OR_RETURN(const bool is_loopback, IsLoopback(endpoint));
  if (is_loopback) return warnings;
  const CredentialFiles& given = options.credentials;
  const bool has_token = !given.token.empty() || !given.token_file.empty();
  if (!has_token && given.tls.ca.empty()) {
    if (!options.insecure) {
      return absl::FailedPreconditionError(
          absl::StrCat("'", EscapeForMessage(options.listen),
                       "' can be reached from other machines: give a token, or a certificate, its key and a CA that "
                       "clients' certificates are verified with (mutual TLS); or set insecure"));
    }
    warnings.push_back(absl::StrCat("anyone who can reach ", options.listen, " can read and write everything"));
  }
  if (given.tls.empty()) {
    warnings.push_back(absl::StrCat(
        "traffic to and from ", options.listen, ", ", has_token ? "including the token, " : "",
        "can be read by others on the network, as it is plain TCP; give a certificate and its key to use TLS"));
  }
  return warnings;
}

}  // namespace

// A socket that listens.
struct Server::Listening : std::enable_shared_from_this<Server::Listening> {
  Listening(Server& owner, std::unique_ptr<FileDescriptor> listens, std::shared_ptr<Credentials> given)
      : server(owner), socket(std::move(listens)), credentials(std::move(given)), failures(owner.options_.log) {}

  bool is_local() const { return credentials == nullptr; }
  void Await() {
    waits.AwaitReadable([self = shared_from_this()] { self->server.Accept(self); });
  }

  Server& server;
  const std::unique_ptr<FileDescriptor> socket;
  const std::shared_ptr<Credentials> credentials;  // null: a Unix socket
  AcceptFailures failures;
  Waits waits;
  bool pausing = false;
};

// A loop and its connections; used by its thread only.
struct Server::Served {
  std::shared_ptr<Loop> loop;
  absl::flat_hash_map<const Connection*, std::shared_ptr<Connection>> connections = {};

  // A copy, so that connections may go meanwhile.
  std::vector<std::shared_ptr<Connection>> Connections() const {
    std::vector<std::shared_ptr<Connection>> all;
    for (const auto& [raw, connection] : connections) all.push_back(connection);
    return all;
  }
  // Those that have not said hello, in the order in which they came.
  struct Stranger {
    absl::Time since;
    bool is_local;
    std::weak_ptr<Connection> connection;
  };
  std::deque<Stranger> strangers = {};
};

// The handler of a connection until its client may come in.
class Server::Greeter final : public Handler {
 public:
  Greeter(Server& server, Served& served, std::shared_ptr<const Listening> listening,
          std::weak_ptr<Connection> connection)
      : server_(server), served_(served), listening_(std::move(listening)), connection_(std::move(connection)) {}

  uint32_t MaxBytes(uint8_t type) const override { return type == kHello ? kMaxHelloBytes : 0; }
  absl::Status OnMessage(const MessageHeader& header, absl::string_view body) override {
    if (header.type != kHello) return absl::FailedPreconditionError("the first message must be a hello");
    const std::shared_ptr<Connection> connection = connection_.lock();
    if (connection == nullptr) return absl::OkStatus();
    TDOCK_ASSIGN_OR_RETURN(const Hello hello, DecodeHello(body));
    TDOCK_RETURN_IF_ERROR(server_.Check(hello, *listening_));
    std::erase_if(served_.strangers, [&](const auto& stranger) { return stranger.connection.lock() == connection; });
    if (hello.joins != std::string(kConnectionIdBytes, '\0')) return server_.Join(connection, hello.joins);
    TDOCK_ASSIGN_OR_RETURN(Welcome welcome, server_.options_.welcome(connection, hello.rest));
    const std::string id = listening_->is_local() ? std::string(kConnectionIdBytes, '\0') : server_.Name(connection);
    connection->Send(MessageOf(kWelcome, 0, id + welcome.body), std::move(welcome.file));
    connection->ReplaceHandler(std::move(welcome.handler));
    return absl::OkStatus();
  }
  absl::Status OnData(uint64_t, uint64_t, std::span<const std::byte>) override {
    return absl::FailedPreconditionError("the first message must be a hello");
  }
  void OnClosed(const absl::Status&) override {}

 private:
  Server& server_;
  Served& served_;
  const std::shared_ptr<const Listening> listening_;
  const std::weak_ptr<Connection> connection_;
};

Server::Server(const ServerOptions& options) : options_(options) {}

absl::StatusOr<std::unique_ptr<Server>> Server::Make(const ServerOptions& options) {
  std::unique_ptr<Server> server(new Server(options));
  for (int i = 0; i < options.loops; ++i) {
    auto served = std::make_unique<Served>();
    const std::string name = absl::StrCat("event loop ", i);
    TDOCK_ASSIGN_OR_RETURN(served->loop,
                           Loop::Start(options.heartbeats == nullptr ? nullptr : options.heartbeats->Add(name)));
    server->loops_.push_back(std::move(served));
  }
  for (const auto& served : server->loops_) {
    served->loop->Run([server = server.get(), served = served.get()] {
      served->loop->SetTick(absl::Seconds(1), [server, served] { server->Tick(*served); });
    });
  }
  return server;
}

Server::~Server() {
  StopAccepting();
  for (const auto& served : loops_) {
    served->loop->Run([served = served.get()] {
      for (const auto& connection : served->Connections()) {
        connection->Close(absl::OkStatus());
        connection->Abort();
      }
    });
  }
  for (const auto& served : loops_) served->loop->Stop();
  for (const Path& path : paths_) {
    struct stat there;
    const bool same =
        lstat(path.path.c_str(), &there) == 0 && there.st_dev == path.device && there.st_ino == path.inode;
    if (same) unlink(path.path.c_str());
  }
}

absl::Status Server::ListenOnSocket(const std::string& path) {
  std::vector<std::unique_ptr<FileDescriptor>> sockets(1);
  TDOCK_ASSIGN_OR_RETURN(sockets[0], ListenOnPath(path));
  struct stat there;
  if (lstat(path.c_str(), &there) == 0) paths_.push_back({path, there.st_dev, there.st_ino});
  return Listen(std::move(sockets), absl::StrCat("unix:", path), nullptr);
}

absl::Status Server::ListenOnTcp(const TcpOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(options.listen, "the address to listen on"));
  TDOCK_ASSIGN_OR_RETURN(warnings_, CheckExposure(options, endpoint));
  TDOCK_ASSIGN_OR_RETURN(std::shared_ptr<Credentials> credentials,
                         Credentials::Load(options.credentials, Tls::Side::kServer, options_.log));
  TDOCK_ASSIGN_OR_RETURN(ListeningSockets listening, ListenOn(endpoint));
  tcp_address_ = Endpoint{endpoint.host, listening.port}.ToString();
  return Listen(std::move(listening.sockets), tcp_address_, std::move(credentials));
}

absl::Status Server::Listen(std::vector<std::unique_ptr<FileDescriptor>> sockets, const std::string& where,
                            std::shared_ptr<Credentials> credentials) {
  Loop& loop = *loops_[0]->loop;
  absl::Status status;
  for (auto& socket : sockets) {
    const auto listening = std::make_shared<Listening>(*this, std::move(socket), credentials);
    listening->failures.ListensOn(where);
    loop.Run([&] {
      listening_.push_back(listening);
      status.Update(listening->waits.Open(loop, listening->socket->fd()));
      if (status.ok()) listening->Await();
    });
  }
  return status;
}

void Server::Accept(const std::shared_ptr<Listening>& listening) {
  // Other descriptors have their turn in between.
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    auto socket = std::make_unique<FileDescriptor>(
        accept4(listening->socket->fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket->fd() < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) {
        listening->failures.End();
        break;
      }
      // The socket would be reported again at once: it waits for the next tick.
      if (AcceptFailures::IsShortage(errno)) listening->failures.Add(errno);
      listening->pausing = true;
      return;
    }
    if (listening->is_local() && !IsOwnUser(socket->fd())) continue;
    Served& served = *loops_[next_loop_++ % loops_.size()];
    // A task that is dropped closes the socket.
    auto shared = std::make_shared<std::unique_ptr<FileDescriptor>>(std::move(socket));
    const auto adopt = [this, &served, shared, listening] { Adopt(served, std::move(*shared), listening); };
    served.loop->OnLoopThread() ? adopt() : served.loop->Post(adopt);
  }
  listening->Await();
}

void Server::Adopt(Served& served, std::unique_ptr<FileDescriptor> socket,
                   const std::shared_ptr<Listening>& listening) {
  std::unique_ptr<Stream> stream;
  if (listening->is_local()) {
    stream = MakePlainStream(std::move(socket), true, false);
  } else {
    TuneTcp(socket->fd());
    MakeRoomForStranger(served);
    const Credentials::Current current = listening->credentials->Get();
    if (current.tls == nullptr) {
      stream = MakePlainStream(std::move(socket), false, false);
    } else {
      auto made = MakeTlsStream(std::move(socket), *current.tls, "");
      if (!made.ok()) return;
      stream = *std::move(made);
    }
  }
  const auto connection = std::make_shared<Connection>(served.loop, std::move(stream), options_.max_queued_bytes);
  served.connections.emplace(connection.get(), connection);
  served.strangers.push_back({absl::Now(), listening->is_local(), connection});
  const absl::Status started = connection->Start(std::make_unique<Greeter>(*this, served, listening, connection),
                                                 // It is still held by whoever calls this.
                                                 [&served, raw = connection.get()] { served.connections.erase(raw); });
  if (!started.ok()) served.connections.erase(connection.get());
}

void Server::MakeRoomForStranger(Served& served) {
  std::erase_if(served.strangers, [](const auto& stranger) { return stranger.connection.expired(); });
  const auto most = std::max<size_t>(options_.max_strangers / loops_.size(), 1);
  const auto is_remote = [](const Served::Stranger& stranger) { return !stranger.is_local; };
  auto count = static_cast<size_t>(std::count_if(served.strangers.begin(), served.strangers.end(), is_remote));
  for (; count >= most; --count) {
    const auto oldest = std::find_if(served.strangers.begin(), served.strangers.end(), is_remote);
    if (const auto connection = oldest->connection.lock()) connection->Abort();
    served.strangers.erase(std::find_if(served.strangers.begin(), served.strangers.end(), is_remote));
  }
}

absl::Status Server::Check(const Hello& hello, const Listening& listening) const {
  if (hello.protocol != kProtocol) {
    return absl::FailedPreconditionError(absl::StrCat("the client uses protocol ", hello.protocol, ", the server ",
                                                      kProtocol, ": use the same release on both"));
  }
  if (!listening.is_local()) TDOCK_RETURN_IF_ERROR(CheckToken(listening.credentials->Get().token, hello.token));
  if (hello.role == options_.role) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("this is ", NameOf(options_.role), ", and the client looks for ",
                                                    NameOf(hello.role), ": give it that address"));
}

std::string Server::Name(const std::shared_ptr<Connection>& connection) {
  std::random_device random;
  std::string id;
  while (id.size() < kConnectionIdBytes) id.push_back(static_cast<char>(random()));
  MutexLock lock(mu_);
  joinable_[id] = connection;
  if (joinable_.size() >= sweep_at_) {
    absl::erase_if(joinable_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = std::max<size_t>(64, 2 * joinable_.size());
  }
  return id;
}

absl::Status Server::Join(const std::shared_ptr<Connection>& connection, const std::string& to) {
  std::shared_ptr<Connection> other;
  {
    MutexLock lock(mu_);
    if (const auto found = joinable_.find(to); found != joinable_.end()) other = found->second.lock();
  }
  if (other == nullptr) return absl::FailedPreconditionError("the connection to join is gone");
  other->Join(connection->Release(), MessageOf(kWelcome, 0, to));
  return absl::OkStatus();
}

void Server::Tick(Served& served) {
  if (&served == loops_[0].get()) {
    for (const auto& listening : listening_) {
      if (std::exchange(listening->pausing, false)) listening->Await();
    }
  }
  for (const auto& connection : served.Connections()) connection->Tick();
  const absl::Time late = absl::Now() - options_.hello_within;
  while (!served.strangers.empty() && served.strangers.front().since <= late) {
    const auto connection = served.strangers.front().connection.lock();
    served.strangers.pop_front();
    if (connection != nullptr) connection->Close(absl::DeadlineExceededError("the client did not say hello"));
  }
}

void Server::StopAccepting() {
  if (loops_.empty()) return;
  loops_[0]->loop->Run([this] {
    for (const auto& listening : listening_) {
      listening->waits.Close();
      listening->pausing = false;
      // Those that wait in the backlog are refused.
      shutdown(listening->socket->fd(), SHUT_RDWR);
    }
  });
}

void Server::CloseAll(const absl::Status& why) {
  for (const auto& served : loops_) {
    served->loop->Run([served = served.get(), &why] {
      for (const auto& connection : served->Connections()) connection->Close(why);
    });
  }
}

void Server::Touch() {
  for (const auto& served : loops_) served->loop->Run([] {});
}

int64_t Server::accept_failures() const {
  int64_t count = 0;
  for (const auto& listening : listening_) count += listening->failures.count();
  return count;
}

}  // namespace tdock::net
