// What bytes cost between processes: few large rows.
#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/dock/payload_columns.h"
#include "bench/dock/payload_runs.h"
#include "bench/service/served.h"
#include "bench/service/service_benchmarks.h"
#include "core/rpc/stream_client.h"
#include "core/rpc/stream_server.h"

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

// ---- The bare stream: the same bytes over gRPC, and nothing done with them.

class BareStream {
 public:
  static absl::StatusOr<std::shared_ptr<BareStream>> Create(std::vector<Column> columns) {
    auto bare = std::make_shared<BareStream>();
    bare->columns_ = std::move(columns);
    for (const Column& column : bare->columns_) {
      const Buffer& values = column.values();
      for (size_t at = 0; at < values.size(); at += kMessageBytes) {
        bare->messages_.push_back({values.Slice(at, std::min(kMessageBytes, values.size() - at))});
      }
    }
    TDOCK_ASSIGN_OR_RETURN(bare->server_,
                           rpc::StreamServer::Start({}, [bare = bare.get()](absl::string_view method, auto sink) {
                             return std::make_shared<Handler>(*bare, method == "/bare/get", std::move(sink));
                           }));
    rpc::StreamClientOptions options;
    options.target = absl::StrCat("127.0.0.1:", bare->server_->port());
    TDOCK_ASSIGN_OR_RETURN(bare->client_, rpc::StreamClient::Connect(options));
    return bare;
  }

  absl::Status Put() { return Call("/bare/put", messages_); }
  absl::Status Get() { return Call("/bare/get", {}); }

 private:
  static constexpr size_t kMessageBytes = 1 << 20;

  class Handler final : public rpc::CallHandler {
   public:
    Handler(const BareStream& bare, bool sends, std::shared_ptr<rpc::CallSink> sink)
        : bare_(bare), sends_(sends), sink_(std::move(sink)) {}
    void OnMessage(rpc::Pieces) override {}
    void OnHalfClose() override {
      if (sends_) {
        for (const rpc::Message& message : bare_.messages_) sink_->Send(message);
      }
      sink_->Finish(absl::OkStatus());
    }
    void OnGone() override {}

   private:
    const BareStream& bare_;
    const bool sends_;
    const std::shared_ptr<rpc::CallSink> sink_;
  };

  absl::Status Call(absl::string_view method, std::span<const rpc::Message> messages) {
    return client_
        ->Call(
            method, messages, [](rpc::Pieces) { return absl::OkStatus(); }, absl::Now() + absl::Minutes(1))
        .status;
  }

  std::vector<Column> columns_;
  std::vector<rpc::Message> messages_;
  std::unique_ptr<rpc::StreamServer> server_;
  std::unique_ptr<rpc::StreamClient> client_;
};

absl::StatusOr<TimedRun> TimeBare(const std::shared_ptr<LargeRows>& rows, bool put, Clock& clock) {
  TDOCK_ASSIGN_OR_RETURN(const auto bare, BareStream::Create(rows->columns()));
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
    add(absl::StrCat("service/dense/tcp/", verb), "a bare gRPC stream",
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
