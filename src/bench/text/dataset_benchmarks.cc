#include "bench/text/dataset_benchmarks.h"

#include <malloc.h>
#include <simdjson.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "data/dataset.h"
#include "data/loader.h"

namespace tdock::bench {
namespace {

constexpr double kMegabyte = 1e6;

// A file that lives as long as what is measured on it.
class JsonLinesFile {
 public:
  static absl::StatusOr<std::shared_ptr<JsonLinesFile>> Make(int64_t bytes) {
    const std::string path =
        (std::filesystem::temp_directory_path() / absl::StrCat("tdock-bench-", ::getpid(), ".jsonl")).string();
    std::shared_ptr<JsonLinesFile> made(new JsonLinesFile(path));
    TDOCK_ASSIGN_OR_RETURN(auto file, Env::Real().OpenForWriting(path, WriteMode::kTruncate));
    Rng rng(1);
    std::string piece;
    while (made->bytes_ < bytes) {
      piece.clear();
      while (piece.size() < size_t{1} << 20) AddRecord(rng, made->records_++, piece);
      TDOCK_RETURN_IF_ERROR(file->Append(piece));
      made->bytes_ += static_cast<int64_t>(piece.size());
    }
    TDOCK_RETURN_IF_ERROR(file->Close());
    return made;
  }
  ~JsonLinesFile() { Env::Real().Remove(path_).IgnoreError(); }
  JsonLinesFile(const JsonLinesFile&) = delete;
  JsonLinesFile& operator=(const JsonLinesFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }
  int64_t records() const { return records_; }

 private:
  explicit JsonLinesFile(std::string path) : path_(std::move(path)) {}

  // Preferences of about a kilobyte: words, quotes and line ends that JSON escapes, and letters beyond ASCII.
  static void AddRecord(Rng& rng, int64_t number, std::string& bytes) {
    absl::StrAppend(&bytes, "{\"id\": ", number, ", \"score\": ", rng.Uniform());
    for (const auto& [name, words] : {std::pair("prompt", 60), {"chosen", 80}, {"rejected", 80}}) {
      absl::StrAppend(&bytes, ", \"", name, "\": \"");
      for (uint64_t i = rng.Below(static_cast<uint64_t>(words)); i > 0; --i) {
        constexpr absl::string_view kWords[] = {"the ",   "model ",  "answers ", "\\\"yes\\\" ",
                                                "and\\n", "learns ", "größer ",  "42 "};
        absl::StrAppend(&bytes, kWords[rng.Below(std::size(kWords))]);
      }
      bytes += '"';
    }
    bytes += "}\n";
  }

  const std::string path_;
  int64_t bytes_ = 0;
  int64_t records_ = 0;
};

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  statm >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// The highest resident memory from its making on, looked at every 10 ms.
class PeakWatch {
 public:
  PeakWatch() : before_(ResidentBytes()), thread_([this] { Watch(); }) {}
  ~PeakWatch() { Stop(); }
  PeakWatch(const PeakWatch&) = delete;
  PeakWatch& operator=(const PeakWatch&) = delete;

  int64_t Stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
    return std::max<int64_t>(peak_ - before_, 0);
  }

 private:
  void Watch() {
    while (!stopping_) {
      peak_ = std::max<int64_t>(peak_, ResidentBytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  const int64_t before_;
  std::atomic<int64_t> peak_ = 0;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

struct Streaming {
  bool shuffle = false;
  int workers = 0;
};

absl::Status Stream(const JsonLinesFile& file, const Streaming& how) {
  TDOCK_ASSIGN_OR_RETURN(const data::Adapter adapter, data::Adapters().Find("custom"));
  TDOCK_ASSIGN_OR_RETURN(
      const auto dataset,
      data::Dataset::Open(Env::Real(), {&file.path(), 1}, data::Format::kJsonLines, adapter, data::Phase::kReward));
  data::Loader<data::Sample> loader(
      *dataset, {.batch_size = 64, .shuffle = how.shuffle, .drop_last = false, .epochs = 1, .workers = how.workers});
  int64_t samples = 0;
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(const auto batch, loader.Next());
    if (!batch) break;
    samples += static_cast<int64_t>(batch->size());
  }
  if (samples != file.records()) return absl::InternalError("not every record came");
  return absl::OkStatus();
}

// What a program that only wants the same columns must at least do: it looks at the three texts and keeps nothing.
absl::Status ParseAlone(const JsonLinesFile& file) {
  TDOCK_ASSIGN_OR_RETURN(const auto opened, Env::Real().OpenForReading(file.path()));
  constexpr size_t kPiece = size_t{1} << 20;
  std::string buffer(2 * kPiece + simdjson::SIMDJSON_PADDING, '\0');
  simdjson::dom::parser parser;
  size_t held = 0;
  int64_t records = 0;
  size_t text_bytes = 0;
  for (uint64_t offset = 0; offset < opened->size();) {
    const size_t more = std::min<uint64_t>(kPiece, opened->size() - offset);
    TDOCK_RETURN_IF_ERROR(opened->ReadAt(offset, std::span(buffer.data() + held, more)));
    offset += more;
    held += more;
    const char* begin = buffer.data();
    const char* const end = begin + held;
    while (const void* newline = std::memchr(begin, '\n', static_cast<size_t>(end - begin))) {
      const auto size = static_cast<size_t>(static_cast<const char*>(newline) - begin);
      simdjson::dom::element element;
      if (parser.parse(begin, size, false).get(element) != simdjson::SUCCESS) return absl::InternalError("not JSON");
      for (const char* name : {"prompt", "chosen", "rejected"}) {
        std::string_view text;
        if (element[name].get(text) != simdjson::SUCCESS) return absl::InternalError("a column is missing");
        text_bytes += text.size();
      }
      ++records;
      begin += size + 1;
    }
    held = static_cast<size_t>(end - begin);
    std::memmove(buffer.data(), begin, held);
  }
  if (records != file.records() || text_bytes == 0) return absl::InternalError("not every record came");
  return absl::OkStatus();
}

absl::StatusOr<Prepared> PrepareStream(Clock& clock, int64_t bytes, const Streaming& how) {
  TDOCK_ASSIGN_OR_RETURN(const std::shared_ptr<JsonLinesFile> file, JsonLinesFile::Make(bytes));
  const auto speed = [file](double seconds) { return static_cast<double>(file->bytes()) / kMegabyte / seconds; };
  return Prepared{.run = [=, &clock]() -> absl::StatusOr<Figure> {
                    ::malloc_trim(0);
                    PeakWatch watch;
                    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&] { return Stream(*file, how); }));
                    return Figure(speed(seconds), {{"rss_growth_MB", static_cast<double>(watch.Stop()) / kMegabyte}});
                  },
                  .reference = [=, &clock]() -> absl::StatusOr<Figure> {
                    TDOCK_ASSIGN_OR_RETURN(const double seconds, Seconds(clock, [&] { return ParseAlone(*file); }));
                    return Figure(speed(seconds));
                  }};
}

}  // namespace

void AddDatasetBenchmarks(std::vector<Benchmark>& benchmarks, bool quick) {
  const int64_t bytes = quick ? 8'000'000 : 1'000'000'000;
  for (const bool shuffle : {false, true}) {
    for (const int workers : {0, 2}) {
      benchmarks.push_back(
          {.name = absl::StrCat("text/stream/jsonl/order=", shuffle ? "shuffled" : "file", "/workers=", workers),
           .unit = "MB/s",
           .better = Better::kHigher,
           .of = "simdjson",
           .prepare = [=](const Settings& settings) {
             return PrepareStream(settings.clock, bytes, {.shuffle = shuffle, .workers = workers});
           }});
    }
  }
}

}  // namespace tdock::bench
