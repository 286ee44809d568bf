// Samples: what records mean.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "data/adapter.h"
#include "data/value.h"
#include "text/conversation.h"

namespace tdock::data {

// A record as its adapter understands it; what the record lacks is absent.
struct Sample {
  // Text as it stands, or turns.
  using Part = std::variant<std::string, std::vector<text::Turn>>;

  std::optional<Part> prompt = {};
  std::optional<Part> chosen = {};
  std::optional<Part> rejected = {};
  std::vector<text::Turn> conversation = {};
  text::Context context = {};  // the tools that the turns may call, and the documents that they are about
  std::optional<double> label = {};
  std::optional<std::string> text = {};
  std::string truth = {};              // empty: unknown
  std::string source = {};             // empty: unknown
  std::vector<std::string> kept = {};  // the cells of Adapter::keep as TextOfValue() gives them

  friend bool operator==(const Sample&, const Sample&) = default;
};

// The turns of a conversation, as text::ReadTurns() reads them. InvalidArgument names the turn.
absl::StatusOr<std::vector<text::Turn>> TurnsOf(const Value& value);

// InvalidArgument names the column that holds something else than it should. `record` has the cells of
// ColumnsOf(adapter, phase).
absl::StatusOr<Sample> MakeSample(const Adapter& adapter, Phase phase, Record record);

}  // namespace tdock::data
