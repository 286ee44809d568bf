#include "bench/inference/stream_load.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "bench/inference/event_stream.h"
#include "core/base/child_process.h"
#include "core/base/rng.h"
#include "core/base/status.h"

namespace tdock::bench {
namespace {

using Json = nlohmann::json;
using Time = std::chrono::steady_clock::time_point;

constexpr std::chrono::minutes kLongest(10);

double Milliseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

// A connection to the server, and what has come over it.
class Connection {
 public:
  explicit Connection(int socket) : socket_(socket) {}
  ~Connection() { ::close(socket_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int socket() const { return socket_; }
  bool ended() const { return events_.ended(); }

  absl::Status Post(const std::string& path, const std::string& body) {
    const std::string request =
        absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: 127.0.0.1\r\n",
                     "Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
    sent_ = std::chrono::steady_clock::now();
    for (size_t at = 0; at < request.size();) {
      const ssize_t size = ::send(socket_, request.data() + at, request.size() - at, MSG_NOSIGNAL);
      if (size < 0) return absl::ErrnoToStatus(errno, "send to the server");
      at += static_cast<size_t>(size);
    }
    return absl::OkStatus();
  }

  // What has arrived. An event with text or tokens counts as one token, and the last, which says why the answer ended,
  // as none.
  absl::Status Read() {
    std::array<char, 16 << 10> buffer;
    const ssize_t size = ::recv(socket_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return absl::OkStatus();
    if (size < 0) return absl::ErrnoToStatus(errno, "read from the server");
    if (size == 0) return absl::InternalError("the server closed a connection before its answer was whole");
    const Time now = std::chrono::steady_clock::now();
    return events_.Read({buffer.data(), static_cast<size_t>(size)}, [&](absl::string_view data) {
      if (absl::StrContains(data, "\"finish_reason\":null")) tokens_.push_back(now);
      const size_t usage = data.find(kUsage);
      if (usage != absl::string_view::npos)
        new_tokens_ = std::strtoll(data.data() + usage + kUsage.size(), nullptr, 10);
      last_ = now;
    });
  }

  Time sent() const { return sent_; }
  const std::vector<Time>& tokens() const { return tokens_; }  // when they came
  Time last() const { return last_; }
  int64_t new_tokens() const { return new_tokens_; }  // as the server counts them

 private:
  static constexpr absl::string_view kUsage = "\"completion_tokens\":";

  const int socket_;
  EventStream events_ = {};
  Time sent_ = {}, last_ = {};
  std::vector<Time> tokens_ = {};
  int64_t new_tokens_ = 0;
};

class Streams {
 public:
  explicit Streams(const StreamLoad& load) : load_(load) {}
  ~Streams() {
    if (epoll_ >= 0) ::close(epoll_);
  }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  absl::Status Run() {
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ < 0) return absl::ErrnoToStatus(errno, "epoll_create1");
    for (int i = 0; i < load_.streams; ++i) TDOCK_RETURN_IF_ERROR(Connect(streams_));
    if (!load_.update.is_null()) TDOCK_RETURN_IF_ERROR(Connect(update_));
    std::vector<std::string> bodies;
    for (int i = 0; i < load_.streams; ++i) bodies.push_back(BodyOf(static_cast<uint64_t>(i)));
    for (size_t i = 0; i < streams_.size(); ++i) TDOCK_RETURN_IF_ERROR(streams_[i]->Post(load_.path, bodies[i]));
    const Time deadline = std::chrono::steady_clock::now() + kLongest;
    while (!std::all_of(streams_.begin(), streams_.end(), [](const auto& one) { return one->ended(); }) ||
           !(update_.empty() || update_.front()->ended())) {
      if (std::chrono::steady_clock::now() > deadline) return absl::DeadlineExceededError("the streams do not end");
      TDOCK_RETURN_IF_ERROR(ReadSome());
      TDOCK_RETURN_IF_ERROR(PostUpdate());
    }
    return Check();
  }

  StreamFigures Figures() const {
    StreamFigures figures;
    Time end;
    std::vector<double> first, next;
    double events = 0;
    for (const auto& stream : streams_) {
      const std::vector<Time>& tokens = stream->tokens();
      first.push_back(Milliseconds(tokens.front() - stream->sent()));
      for (size_t i = 1; i < tokens.size(); ++i) next.push_back(Milliseconds(tokens[i] - tokens[i - 1]));
      end = std::max(end, stream->last());
      events += static_cast<double>(tokens.size());
    }
    figures.tokens_per_s = 1000 * static_cast<double>(load_.streams) * static_cast<double>(load_.new_tokens) /
                           Milliseconds(end - streams_.front()->sent());
    figures.events = events / static_cast<double>(load_.streams) / static_cast<double>(load_.new_tokens);
    figures.first_p50 = Quantile(first, 0.5);
    figures.first_p99 = Quantile(first, 0.99);
    figures.next_p50 = Quantile(next, 0.5);
    figures.next_p99 = Quantile(next, 0.99);
    if (!update_.empty()) AddUpdate(figures);
    return figures;
  }

 private:
  using Connections = std::vector<std::unique_ptr<Connection>>;

  absl::Status Connect(Connections& connections) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return absl::ErrnoToStatus(errno, "socket");
    connections.push_back(std::make_unique<Connection>(fd));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(load_.port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("connect to port ", load_.port));
    }
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    epoll_event event = {.events = EPOLLIN, .data = {.ptr = connections.back().get()}};
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) return absl::ErrnoToStatus(errno, "epoll_ctl");
    return absl::OkStatus();
  }

  std::string BodyOf(uint64_t stream) const {
    Rng rng(DeriveSeed(load_.seed, stream));
    Json body = load_.fields;
    body["prompt"] = Json::array();
    for (int64_t i = 0; i < load_.prompt; ++i)
      body["prompt"].push_back(rng.Below(static_cast<uint64_t>(load_.vocabulary)));
    body["max_tokens"] = load_.new_tokens;
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    return JsonText(body);
  }

  absl::Status ReadSome() {
    std::array<epoll_event, 128> events;
    const int count = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 1000);
    if (count < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "epoll_wait");
    for (int i = 0; i < count; ++i) {
      auto* const connection = static_cast<Connection*>(events[static_cast<size_t>(i)].data.ptr);
      TDOCK_RETURN_IF_ERROR(connection->Read());
      if (connection->ended()) ::epoll_ctl(epoll_, EPOLL_CTL_DEL, connection->socket(), nullptr);
    }
    return absl::OkStatus();
  }

  absl::Status PostUpdate() {
    if (update_.empty() || posted_) return absl::OkStatus();
    const Time begun = AllBegun();
    for (const auto& stream : streams_) {
      const std::vector<Time>& tokens = stream->tokens();
      const auto since = std::count_if(tokens.begin(), tokens.end(), [&](Time token) { return token > begun; });
      if (since < load_.update_after && !stream->ended()) return absl::OkStatus();
    }
    posted_ = true;
    return update_.front()->Post(load_.update_path, JsonText(load_.update));
  }

  absl::Status Check() const {
    for (const auto& stream : streams_) {
      if (stream->new_tokens() == load_.new_tokens && stream->tokens().size() >= 2) continue;
      return absl::InternalError(absl::StrCat("a stream has ", stream->new_tokens(), " tokens in ",
                                              stream->tokens().size(), " events, not ", load_.new_tokens));
    }
    return absl::OkStatus();
  }

  // When the last stream had its first token; the end of time before that.
  Time AllBegun() const {
    Time begun = Time::min();
    for (const auto& stream : streams_) {
      begun = stream->tokens().empty() ? Time::max() : std::max(begun, stream->tokens().front());
      if (begun == Time::max()) break;
    }
    return begun;
  }

  // `values` must not be empty.
  static double Quantile(std::vector<double> values, double part) {
    std::sort(values.begin(), values.end());
    return values[std::min(values.size() - 1, static_cast<size_t>(part * static_cast<double>(values.size())))];
  }

  void AddUpdate(StreamFigures& figures) const {
    const Time posted = update_.front()->sent();
    const Time all_begun = AllBegun();
    std::vector<double> before;
    for (const auto& stream : streams_) {
      const std::vector<Time>& tokens = stream->tokens();
      for (size_t i = 1; i < tokens.size(); ++i) {
        const double gap = Milliseconds(tokens[i] - tokens[i - 1]);
        if (tokens[i] > posted) {
          figures.longest_after = std::max(figures.longest_after, gap);
        } else if (tokens[i - 1] >= all_begun) {
          before.push_back(gap);
        }
      }
    }
    if (before.empty()) return;
    figures.step = Quantile(before, 0.5);
    figures.longest_before = *std::max_element(before.begin(), before.end());
    figures.update = Milliseconds(update_.front()->last() - posted);
    Time first_end = Time::max();
    for (const auto& stream : streams_) first_end = std::min(first_end, stream->last());
    figures.left = Milliseconds(first_end - update_.front()->last());
  }

  const StreamLoad& load_;
  int epoll_ = -1;
  Connections streams_ = {}, update_ = {};
  bool posted_ = false;
};

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(StreamLoad, port, streams, prompt, new_tokens, vocabulary, seed, path,
                                                fields, update_path, update, update_after)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StreamFigures, tokens_per_s, first_p50, first_p99, next_p50, next_p99, step,
                                   longest_before, longest_after, update, left, events)

absl::StatusOr<StreamFigures> RunStreams(const StreamLoad& load) {
  Streams streams(load);
  TDOCK_RETURN_IF_ERROR(streams.Run());
  return streams.Figures();
}

Json JsonOf(const StreamFigures& figures) { return figures; }

absl::StatusOr<StreamFigures> FiguresOf(const std::string& line) {
  try {
    return ReadJson(line).get<StreamFigures>();
  } catch (const Json::exception& error) {
    return absl::InternalError(absl::StrCat("'", line, "' are no figures: ", error.what()));
  }
}

absl::StatusOr<StreamFigures> RunStreamsApart(const StreamLoad& load) {
  TDOCK_ASSIGN_OR_RETURN(const auto client, ChildProcess::Start({FolderOfThisProgram() + "/tdock-bench", "--worker",
                                                                 "streams", JsonText(Json(load))}));
  TDOCK_ASSIGN_OR_RETURN(const std::string line, client->ReadLine(absl::FromChrono(kLongest)));
  return FiguresOf(line);
}

absl::Status RunStreamWorker(const std::string& text) {
  const Json json = ReadJson(text);
  if (!json.is_object()) return absl::InvalidArgumentError(absl::StrCat("the load '", text, "' is no JSON object"));
  StreamLoad load;
  try {
    load = json.get<StreamLoad>();
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("the load '", text, "': ", error.what()));
  }
  TDOCK_ASSIGN_OR_RETURN(const StreamFigures figures, RunStreams(load));
  std::cout << JsonText(JsonOf(figures)) << std::endl;
  return absl::OkStatus();
}

}  // namespace tdock::bench
