// Which columns of a data set mean what, by the data set's name.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "data/value.h"
#include "text/conversation.h"

namespace tdock::data {

// What samples are used for.
enum class Phase {
  kSft,          // a prompt and the chosen answer, or a conversation
  kReward,       // a prompt with a chosen and a rejected answer
  kPrompt,       // prompts to answer
  kUnsupervised  // text
};

// "sft", "reward", "prompt", "unsupervised".
absl::string_view PhaseName(Phase phase);

struct Adapter {
  enum class Style {
    kText,  // prompt and answers are put together as they stand
    kChat   // prompt and answers are turns of a conversation, for a template to put together
  };

  std::string name;
  Style style = Style::kText;
  // Columns; empty: none.
  std::string prompt = {};
  std::string chosen = {};
  std::string rejected = {};
  std::string conversation = {};  // a list of {"role", "content"} or of {"from", "value"}
  std::string label = {};         // a number, or a truth value
  std::string text = {};

  friend bool operator==(const Adapter&, const Adapter&) = default;
};

// Adapters by name. Not thread-safe while it is changed.
class Adapters {
 public:
  // Dahoas/rm-static and Dahoas/full-hh-rlhf; and for local files `custom` (columns prompt, chosen, rejected, as text)
  // `chat` (the same as turns, and a column messages), and `text`.
  Adapters();

  // Takes the place of one with the same name.
  void Set(Adapter adapter);

  // From YAML: under each name `style` (text or chat) and any of prompt, chosen, rejected, conversation, label and
  // text. InvalidArgument, with all that is wrong, a line each; then nothing is added. `file` stands for it in
  // messages.
  absl::Status AddYaml(absl::string_view yaml, absl::string_view file);

  // NotFound for an unknown name: which there are, and how to add one.
  absl::StatusOr<Adapter> Find(absl::string_view name) const;

 private:
  std::vector<Adapter> adapters_;  // by name
};

// The columns that a phase reads, those of `label` included, in the order that MakeSample() expects. InvalidArgument
// where the adapter has no column for what the phase needs.
absl::StatusOr<std::vector<std::string>> ColumnsOf(const Adapter& adapter, Phase phase);

// A record as its adapter understands it; what the record lacks is absent.
struct Sample {
  // Text as it stands, or turns.
  using Part = std::variant<std::string, std::vector<text::Turn>>;

  std::optional<Part> prompt = {};
  std::optional<Part> chosen = {};
  std::optional<Part> rejected = {};
  std::vector<text::Turn> conversation = {};
  std::optional<double> label = {};
  std::optional<std::string> text = {};

  friend bool operator==(const Sample&, const Sample&) = default;
};

// InvalidArgument names the column that holds something else than it should. `record` has the cells of
// ColumnsOf(adapter, phase).
absl::StatusOr<Sample> MakeSample(const Adapter& adapter, Phase phase, Record record);

}  // namespace tdock::data
