// Whatever the logs of a run hold, and wherever a read of them ends: a page that follows the run has in the end what
// one has that reads all of it at once, also after the logs were cut back, and all of it is bounded, valid JSON.
//
// An input is how many bytes each read takes, where the writer has paused, and then the lines of all three logs.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "trainer/run_page/run_follower.h"

namespace tdock::trainer {
namespace {

constexpr const char* kLogs[] = {"metrics.jsonl", "samples.jsonl", "timeline.jsonl"};

// On a disk in memory, where there is one.
struct Folder {
  Folder()
      : path(absl::StrCat(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", "/run_follower_fuzz.", ::getpid())) {
    std::filesystem::create_directories(path + "/tensorboard");
    if (!WriteFileAtomically(Env::Real(), path + "/config.yaml", "recipe: grpo\n").ok()) std::abort();
  }
  ~Folder() { std::filesystem::remove_all(path); }
  const std::string path;
};

void Append(const std::string& path, absl::string_view bytes) {
  const auto file = Env::Real().OpenForWriting(path, WriteMode::kAppend);
  if (!file.ok() || !(*file)->Append(bytes).ok() || !(*file)->Close().ok()) std::abort();
}

void PollAll(RunFollower& run, size_t most_bytes) {
  for (int i = 0; run.Poll(most_bytes); ++i) {
    if (i > 1'000'000) std::abort();
  }
}

// All that a page gets which has just been opened.
std::string All(const RunFollower& run) {
  LogRecord data = run.Since(0);
  data.erase("changed");
  const std::string text = absl::StrCat(JsonText(data), JsonText(run.Summary()["last"]));
  for (const std::string& tag : run.Tags()) {
    if (!run.MetricSince(tag, 0)) std::abort();
  }
  return text;
}

std::string ReadAtOnce(const std::string& path) {
  Sequence sequence;
  RunFollower run(Env::Real(), path, "run", sequence);
  PollAll(run, size_t{1} << 24);
  return All(run);
}

}  // namespace
}  // namespace tdock::trainer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tdock::trainer;
  static const Folder folder;
  if (size < 2) return 0;
  const std::string input(reinterpret_cast<const char*>(data) + 2, size - 2);
  const size_t most_bytes = 1 + data[0], pause = std::min<size_t>(input.size(), data[1] * input.size() / 255);
  for (const char* log : kLogs) std::filesystem::remove(absl::StrCat(folder.path, "/", log));
  Sequence sequence;
  RunFollower run(tdock::Env::Real(), folder.path, "run", sequence);
  for (const absl::string_view part :
       {absl::string_view(input).substr(0, pause), absl::string_view(input).substr(pause)}) {
    for (const char* log : kLogs) Append(absl::StrCat(folder.path, "/", log), part);
    PollAll(run, most_bytes);
    if (All(run).size() > (size_t{1} << 20) + 20 * size) std::abort();
  }
  if (All(run) != ReadAtOnce(folder.path)) std::abort();
  // The run is resumed from an earlier state.
  for (const char* log : kLogs) std::filesystem::resize_file(absl::StrCat(folder.path, "/", log), pause / 2);
  PollAll(run, most_bytes);
  if (All(run) != ReadAtOnce(folder.path)) std::abort();
  return 0;
}
