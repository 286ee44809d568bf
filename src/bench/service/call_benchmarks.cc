// What calls cost between processes: few bytes.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "bench/dock/small_rows.h"
#include "bench/service/served.h"
#include "bench/service/service_benchmarks.h"

namespace tdock::bench {
namespace {

// Of empty calls: the median and the 99th percentile of so many.
absl::StatusOr<Prepared> PrepareRoundTrip(const Settings& settings, Over over) {
  TDOCK_ASSIGN_OR_RETURN(const auto served, Served::Start(over));
  const size_t calls = settings.quick ? 100 : 5000;
  return Prepared{.run = [served, calls, &clock = settings.clock]() -> absl::StatusOr<Figure> {
    std::vector<double> times;
    times.reserve(calls);
    for (size_t i = 0; i < calls; ++i) {
      TDOCK_ASSIGN_OR_RETURN(const double seconds,
                             Seconds(clock, [&] { return served->dock->ListPartitions().status(); }));
      times.push_back(seconds * 1e3);
    }
    std::sort(times.begin(), times.end());
    return Figure(times[times.size() / 2], {{"p99", times[times.size() * 99 / 100]}});
  }};
}

// The program tdock-dock puts from several processes at once, and says how fast each was.
absl::StatusOr<Prepared> PrepareClients(const Settings& settings, int clients) {
  TDOCK_ASSIGN_OR_RETURN(const auto served, Served::Start(Over::kTcp));
  const std::string seconds = settings.quick ? "0.2" : "2";
  return Prepared{.run = [served, clients, seconds]() -> absl::StatusOr<Figure> {
    std::vector<std::unique_ptr<ChildProcess>> processes;
    for (int i = 0; i < clients; ++i) {
      TDOCK_ASSIGN_OR_RETURN(auto process,
                             ChildProcess::Start({FolderOfThisProgram() + "/tdock-dock", "load", "--address",
                                                  served->server->tcp_address(), "--rows", "16", "--columns", "9",
                                                  "--cell-bytes", "32", "--seconds", seconds}));
      processes.push_back(std::move(process));
    }
    double total = 0;
    for (const auto& process : processes) {
      TDOCK_ASSIGN_OR_RETURN(const std::string line, process->ReadLine(absl::Minutes(1)));
      double rate = 0;
      if (!absl::SimpleAtod(line.substr(0, line.find(' ')), &rate)) {
        return absl::InternalError(absl::StrCat("tdock-dock load says '", line, "'"));
      }
      total += rate;
      TDOCK_RETURN_IF_ERROR(process->Wait(absl::Seconds(10)).status());
    }
    TDOCK_RETURN_IF_ERROR(served->dock->DropPartition("load"));
    return total;
  }};
}

absl::StatusOr<Prepared> PrepareTake(const Settings& settings, int64_t rows) {
  TDOCK_ASSIGN_OR_RETURN(const auto served, Served::Start(Over::kTcp));
  // The table has the connection to itself.
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<Dock> dock, served->Connect(Over::kTcp));
  TDOCK_ASSIGN_OR_RETURN(std::shared_ptr<SmallRows> table, SmallRows::Create(settings.clock, {}, std::move(dock)));
  TDOCK_RETURN_IF_ERROR(table->FillTo(rows));
  const int takes = settings.quick ? 10 : 300;
  return Prepared{.run = [served, table, takes]() -> absl::StatusOr<Figure> {
    std::vector<double> times;
    for (int i = 0; i < takes; ++i) {
      TDOCK_ASSIGN_OR_RETURN(const double seconds, table->TimeTake(0));
      times.push_back(seconds * 1e3);
    }
    std::sort(times.begin(), times.end());
    return Figure(times[times.size() / 2], {{"p99", times[times.size() * 99 / 100]}});
  }};
}

}  // namespace

void AddCallBenchmarks(std::vector<Benchmark>& benchmarks, bool quick) {
  benchmarks.push_back({.name = "service/put16/clients=4",
                        .unit = "rows/s",
                        .better = Better::kHigher,
                        .prepare = [](const Settings& settings) { return PrepareClients(settings, 4); }});
  for (const auto& [name, over] : {std::pair("tcp", Over::kTcp), std::pair("unix", Over::kSocket)}) {
    benchmarks.push_back(
        {.name = absl::StrCat("service/rtt/", name), .unit = "ms", .prepare = [over = over](const Settings& settings) {
           return PrepareRoundTrip(settings, over);
         }});
  }
  for (int64_t rows = 1000; rows <= (quick ? 10'000 : 1'000'000); rows *= 10) {
    benchmarks.push_back({.name = absl::StrCat("service/take32/rows=", rows),
                          .unit = "ms",
                          .prepare = [=](const Settings& settings) { return PrepareTake(settings, rows); }});
  }
}

}  // namespace tdock::bench
