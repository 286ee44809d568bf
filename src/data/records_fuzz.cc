// Whatever a file holds, reading its records reads nothing outside of it; every record can be read or is an error with
// a place; and records come out the same one by one, backwards, as all at once. So is every sample of the form that the
// columns tell.
//
// The first byte of an input chooses the format.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/testing/hostile_text.h"
#include "data/adapter.h"
#include "data/dataset.h"
#include "data/known_forms.h"
#include "data/record_file.h"
#include "data/sample.h"
#include "data/testing/bytes_file.h"
#include "text/turn_json.h"

namespace tdock::data {
namespace {

void Try(Format format, std::string bytes) {
  const RecordLimits limits{.max_record_bytes = 4096, .max_depth = 16, .max_columns = 64};
  const auto file = OpenRecordFile(std::make_unique<BytesFile>(std::move(bytes)), "f", format, limits);
  CheckMessage(file.status());
  if (!file.ok()) return;
  const std::vector<std::string> wanted = {"text", "prompt", "a", ""};
  std::vector<int64_t> indexes(static_cast<size_t>((*file)->size()));
  std::iota(indexes.begin(), indexes.end(), 0);
  const std::vector<absl::StatusOr<Record>> all = (*file)->Read(indexes, wanted);
  if (all.size() != indexes.size()) std::abort();
  for (size_t i = all.size(); i-- > 0;) {
    const auto one = (*file)->Read({&indexes[i], 1}, wanted);
    if (one.size() != 1 || one[0].status() != all[i].status()) std::abort();
    CheckMessage(all[i].status());
    if (!all[i].ok()) {
      if (all[i].status().message().substr(0, 2) != "f:") std::abort();
      continue;
    }
    // A NaN does not come from any of these formats.
    if (*one[0] != *all[i]) std::abort();
    const Adapter adapter{.name = "x", .style = Adapter::Style::kChat, .prompt = "prompt", .label = "a"};
    CheckMessage(MakeSample(adapter, Phase::kPrompt, {(*all[i])[1], (*all[i])[2]}).status());
    const Adapter talk{.name = "y", .conversation = "prompt"};
    CheckMessage(MakeSample(talk, Phase::kSft, {(*all[i])[1]}).status());
  }
}

// Turns come back from their JSON.
void CheckTurns(const std::vector<text::Turn>& turns) {
  for (text::Turn turn : turns) {
    turn.train = std::nullopt;  // is not in it
    const absl::StatusOr<text::Turn> again = text::ReadTurn(text::JsonOfTurn(turn));
    if (!again.ok() || *again != turn) std::abort();
  }
}

// What the columns tell of the file, and the samples that follow from it.
void TryForm(Format format, const std::string& bytes) {
  const RecordLimits limits{.max_record_bytes = 4096, .max_depth = 16, .max_columns = 64};
  for (const Phase phase : {Phase::kSft, Phase::kReward, Phase::kPrompt, Phase::kUnsupervised}) {
    auto file = OpenRecordFile(std::make_unique<BytesFile>(bytes), "f", format, limits);
    if (!file.ok()) return;
    absl::StatusOr<Adapter> adapter = RecogniseForm(**file, {});
    CheckMessage(adapter.status());
    if (!adapter.ok()) return;
    adapter->keep = {"a", "a.b"};
    std::vector<DataFile> files;
    files.push_back({.path = "f", .format = format, .records = *std::move(file)});
    const auto dataset = Dataset::Open(std::move(files), *adapter, phase, limits);
    CheckMessage(dataset.status());
    if (!dataset.ok()) continue;
    std::vector<int64_t> indexes(static_cast<size_t>((*dataset)->size()));
    std::iota(indexes.begin(), indexes.end(), 0);
    for (const auto& sample : (*dataset)->Load(indexes)) {
      CheckMessage(sample.status());
      if (!sample.ok() && sample.status().message().substr(0, 2) != "f:") std::abort();
      if (const auto* read = sample.ok() ? std::get_if<Sample>(&*sample) : nullptr) CheckTurns(read->conversation);
    }
  }
}

}  // namespace
}  // namespace tdock::data

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tdock::data::Format;
  if (size == 0) return 0;
  constexpr Format kFormats[] = {Format::kJsonLines, Format::kJson, Format::kCsv, Format::kText};
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  tdock::data::Try(kFormats[data[0] % 4], bytes);
  tdock::data::TryForm(kFormats[data[0] % 4], bytes);
  return 0;
}
