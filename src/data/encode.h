// Encodes samples as tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "data/adapter.h"
#include "data/sample.h"
#include "text/conversation.h"
#include "text/tokenizer.h"

namespace tdock::data {

// What to do with a prompt that is too long.
enum class OverlongPrompts {
  kDrop,          // the sample is left out, and counted
  kTruncateLeft,  // its last tokens are kept, and it is counted
  kError
};

struct EncodingRules {
  int64_t max_seq_len = 512;     // limit for training; longer samples are truncated, and counted
  int64_t max_prompt_len = 256;  // limit for prompts to answer
  OverlongPrompts overlong_prompts = OverlongPrompts::kDrop;
  // Which turns count in the loss. A prompt in text style does not count, except with kEverything. kEachReply is
  // kReplies in other phases than kSft.
  text::TrainOn train_on = text::TrainOn::kEachReply;
  // Uses conversations although the loss counts nothing of a reply that calls tools.
  bool allow_untrained_calls = false;
  bool keep_messages = false;  // whether EncodedSample::messages is filled
};

struct EncodedSample {
  std::vector<int32_t> ids = {};            // of kReward: prompt and chosen answer
  std::vector<uint8_t> loss_mask = {};      // for each of `ids`; of kPrompt and kUnsupervised: empty
  std::vector<int32_t> rejected = {};       // of kReward: prompt and rejected answer
  std::vector<uint8_t> rejected_mask = {};  // for each of `rejected`
  std::optional<double> label = {};
  bool truncated = false;
  // True if the template renders a reply otherwise than it was, or will be, generated, so that it is not counted as
  // that in any sample: see EncodedConversation.
  bool rewritten = false;
  bool is_part = false;  // of the record of the sample before it
  // Of kSft and kPrompt:
  int64_t prompt_tokens = 0;     // how many of `ids` come before the last reply, which they ask for; 0: unknown
  std::string prompt_text = {};  // the prompt as it stands, or the last turn of the user
  std::string truth = {};        // the right answer; of kSft, where it is not known, the last reply; else empty
  std::string source = {};       // the data set that the record says it is from, or else the adapter's name
  // The turns that ask for the last reply, as a JSON list of {"role", "content"}; empty where the prompt is plain text.
  std::string messages = {};
  std::vector<std::string> kept = {};  // the cells of Adapter::keep, as text

  friend bool operator==(const EncodedSample&, const EncodedSample&) = default;
};

// Why a valid record yields no sample.
enum class Skip {
  kIncomplete,  // a value that the phase needs is missing
  kEmpty,       // its prompt has no token
  kUncounted,   // the loss counts none of its tokens
  kOverlong
};

template <class T>
using OrSkip = std::variant<T, Skip>;

// Whether the samples hold turns, which need a template.
bool NeedsTemplate(const Adapter& adapter, Phase phase);

// What the tokenizer puts before a text: the token that texts begin with, where it has one.
absl::StatusOr<std::vector<int32_t>> TokensBeforeText(const text::Tokenizer& tokenizer);

// Thread-safe. The tokenizer must outlive it.
class SampleEncoder {
 public:
  // InvalidArgument if NeedsTemplate() and there is none, if the tokenizer has no end-of-text token, or if a length is
  // not positive.
  static absl::StatusOr<SampleEncoder> Create(const Adapter& adapter, Phase phase, const text::Tokenizer& tokenizer,
                                              std::optional<text::ChatTemplate> chat_template,
                                              const EncodingRules& rules);

  // Sample `part` of a record's Parts(). InvalidArgument for what cannot be encoded, for pairs of equal answers and for
  // calls of tools that would not be counted; OutOfRange for an overlong prompt if that is an error.
  absl::StatusOr<OrSkip<EncodedSample>> Encode(const Sample& sample, int64_t part = 0) const;

  // True if a record may make more than one sample: in the phase kSft with kEachReply, where a model's template may
  // render replies otherwise once more turns follow.
  bool makes_parts() const { return rules_.train_on == text::TrainOn::kEachReply; }
  // How many samples a record makes, at least 1: the whole conversation, and those of text::PartsToTrain() that count
  // replies as they were generated, from the longest to the shortest.
  int64_t Parts(const Sample& sample) const;

  // Everything that determines the result of Encode(), except the tokenizer.
  std::string Description() const;

 private:
  SampleEncoder(const text::Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  absl::StatusOr<std::vector<int32_t>> PromptIds(const Sample& sample) const;
  absl::StatusOr<text::EncodedConversation> Joined(const Sample::Part& prompt, const Sample::Part& answer,
                                                   const text::Context& context) const;
  // The first turns of a conversation, as the sample that they make.
  struct Part {
    text::EncodedConversation encoded;
    size_t turns;
  };
  absl::StatusOr<Part> EncodePart(const std::vector<text::Turn>& turns, const text::Context& context,
                                  int64_t part) const;
  absl::Status CheckCalls(const std::vector<text::Turn>& turns, const std::vector<int32_t>& uncounted) const;
  absl::StatusOr<OrSkip<EncodedSample>> EncodeSft(const Sample& sample, int64_t part) const;
  absl::StatusOr<OrSkip<EncodedSample>> EncodePair(const Sample& sample) const;
  absl::StatusOr<OrSkip<EncodedSample>> EncodePrompt(const Sample& sample) const;
  absl::StatusOr<OrSkip<EncodedSample>> EncodeText(const Sample& sample) const;
  // `part`: the turns of the sample, where they are not all of the record's.
  void AddTexts(const Sample& sample, EncodedSample& encoded, std::span<const text::Turn> part = {}) const;

  const text::Tokenizer* tokenizer_;
  Adapter adapter_;
  Phase phase_ = Phase::kSft;
  std::optional<text::ChatTemplate> chat_template_;
  EncodingRules rules_;
  std::vector<int32_t> before_text_;  // what the tokenizer puts before a text
};

}  // namespace tdock::data
