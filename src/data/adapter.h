// Which columns of a data set mean what, by the data set's name.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

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
    kText,   // prompt and answers are put together as they stand
    kChat,   // prompt and answers are turns of a conversation, for a template to put together
    kAlpaca  // as kText, with the prompt in the text that Stanford's Alpaca was trained with
  };

  std::string name;
  Style style = Style::kText;
  // Columns; empty: none. Where no column has the name, it is a dotted path into the objects of one.
  std::string prompt = {};
  std::string input = {};  // what the prompt is about: a line under it, with kAlpaca a section
  std::string chosen = {};
  std::string rejected = {};
  std::string conversation = {};  // a list of {"role", "content"} or of {"from", "value"}
  std::string tools = {};         // JSON schemas of the functions that the turns may call, for the template
  std::string documents = {};     // what the turns are about, for the template
  std::string label = {};         // a number, or a truth value
  std::string truth = {};         // the right answer
  std::string source = {};        // the name of the data set that the record comes from
  std::string text = {};
  std::string truth_after = {};        // the right answer is what follows this in its column; empty: the whole cell
  std::vector<std::string> keep = {};  // columns that travel with the sample
  // Columns that belong to the conversation but are not read: a record that has something in one of them is an error.
  std::vector<std::string> unread = {};

  // Whether the prompt is in no column of its own: it is the turns that the answers begin with.
  bool prompt_is_in_answers() const { return style == Style::kChat && prompt.empty() && !chosen.empty(); }

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

  // From YAML: under each name `style` (text, chat or alpaca), `truth_after`, and any of Adapter's columns but `keep`.
  // InvalidArgument, with all that is wrong, a line each; then nothing is added. `file` stands for it in messages.
  absl::Status AddYaml(absl::string_view yaml, absl::string_view file);

  // NotFound for an unknown name: which there are, and how to add one.
  absl::StatusOr<Adapter> Find(absl::string_view name) const;

 private:
  std::vector<Adapter> adapters_;  // by name
};

// The columns that a phase reads, those of `label` included, in the order that MakeSample() expects. InvalidArgument
// where the adapter has no column for what the phase needs. Only kSft and kPrompt read `truth`, `source` and `keep`.
absl::StatusOr<std::vector<std::string>> ColumnsOf(const Adapter& adapter, Phase phase);

// The key of the configuration that names column `index` of ColumnsOf(), such as "data.columns.prompt".
std::string KeyOfColumn(const Adapter& adapter, Phase phase, size_t index);

// For a log: the style, and the column of each field that has one.
std::string DescribeAdapter(const Adapter& adapter);

}  // namespace tdock::data
