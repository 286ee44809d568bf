// What bytes cost between processes: few large rows.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/dock/payload_columns.h"
#include "bench/dock/payload_runs.h"
#include "bench/service/served.h"
#include "bench/service/service_benchmarks.h"
#include "core/net/endpoint.h"

namespace tdock::bench {
namespace {

constexpr char kPartition[] = "bench";

using MakeColumns = std::function<absl::StatusOr<std::vector<Column>>(bool quick)>;

// A producer's columns, and the server's partition for them.
class LargeRows {
 public:
  static absl::StatusOr<std::shared_ptr<LargeRows>> Create(const Settings& settings, Over over,
                                                           const MakeColumns& make) {
    auto rows = std::make_shared<LargeRows>();
    TDOCK_ASSIGN_OR_RETURN(rows->columns_, make(settings.quick));
    TDOCK_ASSIGN_OR_RETURN(rows->served_, Served::Start(over));
    PartitionOptions options{.name = kPartition};
    for (size_t c = 0; c < rows->columns_.size(); ++c) {
      rows->names_.push_back(absl::StrCat("column", c));
      options.columns.push_back({rows->names_.back(), rows->columns_[c].type()});
      rows->bytes_ += rows->columns_[c].payload_bytes();
    }
    TDOCK_RETURN_IF_ERROR(rows->dock().CreatePartition(options));
    return rows;
  }

  Dock& dock() { return *served_->dock; }
  int64_t bytes() const { return bytes_; }
  int64_t cells() const { return static_cast<int64_t>(columns_.size()) * columns_.front().rows(); }
  const std::vector<Column>& columns() const { return columns_; }

  absl::Status Put() {
    PutRequest request{.partition = kPartition};
    for (size_t c = 0; c < columns_.size(); ++c) {
      TDOCK_RETURN_IF_ERROR(request.batch.Add(names_[c], columns_[c]));
    }
    TDOCK_ASSIGN_OR_RETURN(PutResult result, dock().Put(request));
    ids_ = std::move(result.rows);
    return absl::OkStatus();
  }
  absl::StatusOr<Rows> Read() { return dock().Fetch({.partition = kPartition, .rows = ids_, .columns = names_}); }
  absl::Status Clear() { return dock().Clear({.partition = kPartition, .everything = true}).status(); }

 private:
  std::vector<Column> columns_;
  std::vector<std::string> names_;
  int64_t bytes_ = 0;
  std::shared_ptr<Served> served_;
  std::vector<RowId> ids_;
};

// To the caller's memory.
absl::StatusOr<TimedRun> TimeGet(std::shared_ptr<LargeRows> rows, Clock& clock) {
  TDOCK_RETURN_IF_ERROR(rows->Put());
  return [rows = std::move(rows), &clock]() -> absl::StatusOr<Figure> {
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&] { return rows->Read().status(); }));
    return static_cast<double>(rows->bytes()) / seconds / kGigabyte;
  };
}

// ---- Bare sockets: the same bytes over TCP, and nothing done with them.

class BareSockets {
 public:
  static absl::StatusOr<std::shared_ptr<BareSockets>> Create(std::vector<Column> columns) {
    auto bare = std::make_shared<BareSockets>();
    bare->columns_ = std::move(columns);
    for (const Column& column : bare->columns_) bare->bytes_ += column.values().size();
    bare->received_ = Buffer::Allocate(bare->bytes_);
    TDOCK_ASSIGN_OR_RETURN(net::ListeningSockets listening, net::ListenOn({.host = "127.0.0.1", .port = 0}));
    TDOCK_ASSIGN_OR_RETURN(bare->client_,
                           net::ConnectTo({"127.0.0.1", listening.port}, absl::Now() + absl::Minutes(1)));
    pollfd waits{.fd = listening.sockets[0]->fd(), .events = POLLIN, .revents = 0};
    poll(&waits, 1, -1);
    bare->server_ = std::make_unique<FileDescriptor>(accept4(waits.fd, nullptr, nullptr, SOCK_CLOEXEC));
    net::TuneTcp(bare->server_->fd());
    fcntl(bare->client_->fd(), F_SETFL, 0);  // both wait
    bare->thread_ = std::jthread([bare = bare.get()] { bare->Serve(); });
    return bare;
  }
  ~BareSockets() {
    if (client_ != nullptr) shutdown(client_->fd(), SHUT_RDWR);
  }

  absl::Status Put() {
    return Call('p', [this] { return SendAll(client_->fd()) && Receive(client_->fd(), 1); });
  }
  absl::Status Get() {
    return Call('g', [this] { return Receive(client_->fd(), bytes_); });
  }

 private:
  template <class Rest>
  absl::Status Call(char what, Rest rest) {
    const bool done = send(client_->fd(), &what, 1, MSG_NOSIGNAL) == 1 && rest();
    return done ? absl::OkStatus() : absl::UnavailableError("the sockets are closed");
  }
  void Serve() {
    for (char what = 0; recv(server_->fd(), &what, 1, 0) == 1;) {
      const bool done = what == 'p' ? Receive(server_->fd(), bytes_) && send(server_->fd(), "!", 1, MSG_NOSIGNAL) == 1
                                    : SendAll(server_->fd());
      if (!done) return;
    }
  }
  bool SendAll(int fd) const {
    for (const Column& column : columns_) {
      const Buffer& values = column.values();
      for (size_t at = 0; at < values.size();) {
        const ssize_t sent = send(fd, values.data() + at, values.size() - at, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        at += static_cast<size_t>(sent);
      }
    }
    return true;
  }
  bool Receive(int fd, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
      const ssize_t got = recv(fd, received_.mutable_data() + at, bytes - at, 0);
      if (got <= 0) return false;
      at += static_cast<size_t>(got);
    }
    return true;
  }

  std::vector<Column> columns_;
  size_t bytes_ = 0;
  Buffer received_;
  std::unique_ptr<FileDescriptor> client_, server_;
  std::jthread thread_;
};

absl::StatusOr<TimedRun> TimeBare(const std::shared_ptr<LargeRows>& rows, bool put, Clock& clock) {
  TDOCK_ASSIGN_OR_RETURN(const auto bare, BareSockets::Create(rows->columns()));
  return [bare, put, bytes = rows->bytes(), &clock]() -> absl::StatusOr<Figure> {
    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&] { return put ? bare->Put() : bare->Get(); }));
    return static_cast<double>(bytes) / seconds / kGigabyte;
  };
}

// ---- Views.

// Of all bytes as 64-bit words, so that each is read once. Four sums at a time, and one copy of the code for whatever
// bytes: what is measured is the memory, not what the compiler makes of a loop.
[[gnu::noinline]] uint64_t Sum(std::span<const std::byte> bytes) {
  const auto* const words = reinterpret_cast<const uint64_t*>(bytes.data());
  const size_t count = bytes.size() / sizeof(uint64_t);
  uint64_t sums[4] = {};
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (size_t lane = 0; lane < 4; ++lane) sums[lane] += words[i + lane];
  }
  return std::accumulate(words + i, words + count, sums[0] + sums[1] + sums[2] + sums[3]);
}

uint64_t SumOf(const Rows& rows) {
  uint64_t sum = 0;
  for (size_t column = 0; column < rows.columns().size(); ++column) {
    for (size_t row = 0; row < rows.size(); ++row) sum += Sum(rows.cell(row, column).bytes);
  }
  return sum;
}

absl::StatusOr<Prepared> PrepareViews(const Settings& settings) {
  TDOCK_ASSIGN_OR_RETURN(const auto rows, LargeRows::Create(settings, Over::kSocket, DenseColumns));
  TDOCK_RETURN_IF_ERROR(rows->Put());
  uint64_t right = 0;
  for (const Column& column : rows->columns()) right += Sum(column.PayloadBytes());
  Clock& clock = settings.clock;
  return Prepared{.run = [rows, right, &clock]() -> absl::StatusOr<Figure> {
                    double get_seconds = 0;
                    uint64_t sum = 0;
                    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&]() -> absl::Status {
                                             const absl::Time begun = clock.Now();
                                             TDOCK_ASSIGN_OR_RETURN(const Rows views, rows->Read());
                                             get_seconds = absl::ToDoubleSeconds(clock.Now() - begun);
                                             sum = SumOf(views);
                                             return absl::OkStatus();
                                           }));
                    if (sum != right) return absl::InternalError("the views hold other bytes than were put");
                    return Figure(static_cast<double>(rows->bytes()) / seconds / kGigabyte,
                                  {{"us_per_cell", get_seconds / static_cast<double>(rows->cells()) * 1e6}});
                  },
                  .reference = [rows, right, &clock]() -> absl::StatusOr<Figure> {
                    uint64_t sum = 0;
                    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&] {
                                             for (const Column& column : rows->columns())
                                               sum += Sum(column.PayloadBytes());
                                             return absl::OkStatus();
                                           }));
                    if (sum != right) return absl::InternalError("a sum that changes");
                    return static_cast<double>(rows->bytes()) / seconds / kGigabyte;
                  }};
}

// ----

absl::StatusOr<Prepared> PrepareTcp(const Settings& settings, const MakeColumns& make, bool put, bool bare) {
  TDOCK_ASSIGN_OR_RETURN(const auto rows, LargeRows::Create(settings, Over::kTcp, make));
  Prepared prepared;
  if (put) {
    prepared.run = TimePut(rows, settings.clock);
  } else {
    TDOCK_ASSIGN_OR_RETURN(prepared.run, TimeGet(rows, settings.clock));
  }
  if (bare) {
    TDOCK_ASSIGN_OR_RETURN(prepared.reference, TimeBare(rows, put, settings.clock));
  }
  return prepared;
}

absl::StatusOr<Prepared> PrepareSweepOf(const Settings& settings, int64_t columns) {
  return PrepareSweep(columns, [&](int64_t of_columns) -> absl::StatusOr<TimedRun> {
    const auto make = [&](bool quick) { return WideColumns(quick, of_columns); };
    TDOCK_ASSIGN_OR_RETURN(const auto rows, LargeRows::Create(settings, Over::kTcp, make));
    return TimeGet(rows, settings.clock);
  });
}

}  // namespace

void AddTransferBenchmarks(std::vector<Benchmark>& benchmarks) {
  const auto add = [&](std::string name, std::string of,
                       std::function<absl::StatusOr<Prepared>(const Settings&)> prepare) {
    benchmarks.push_back({.name = std::move(name),
                          .unit = "GB/s",
                          .better = Better::kHigher,
                          .of = std::move(of),
                          .prepare = std::move(prepare)});
  };
  add("service/dense/shm/put", "memcpy", [](const Settings& settings) -> absl::StatusOr<Prepared> {
    TDOCK_ASSIGN_OR_RETURN(const auto rows, LargeRows::Create(settings, Over::kSocket, DenseColumns));
    return Prepared{.run = TimePut(rows, settings.clock), .reference = TimeCopy(rows, settings.clock)};
  });
  add("service/dense/shm/get", "the same sum over private memory", PrepareViews);
  for (const bool put : {true, false}) {
    const char* const verb = put ? "put" : "get";
    add(absl::StrCat("service/dense/tcp/", verb), "bare sockets",
        [=](const Settings& settings) { return PrepareTcp(settings, DenseColumns, put, true); });
    add(absl::StrCat("service/mixed/tcp/", verb), "",
        [=](const Settings& settings) { return PrepareTcp(settings, MixedColumns, put, false); });
  }
  for (const int64_t columns : {1, 8, 32}) {
    add(absl::StrCat("service/sweep_get/columns=", columns), columns > 1 ? "columns=1" : "",
        [=](const Settings& settings) { return PrepareSweepOf(settings, columns); });
  }
}

}  // namespace tdock::bench
