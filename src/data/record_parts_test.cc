// Conversations of which a model's template makes several samples.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/base/testing/fails.h"
#include "data/dataset.h"
#include "data/encode.h"
#include "data/loader.h"
#include "data/testing/char_vocabulary.h"

namespace tdock::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Object Says(const std::string& role, const std::string& content) { return {{"role", role}, {"content", content}}; }

class RecordParts : public testing::Test {
 protected:
  // The samples of a conversation with a model's own template, or what is wrong with them.
  std::vector<absl::StatusOr<OrSkip<EncodedSample>>> Samples(const char* jinja, Value turns, EncodingRules rules = {}) {
    const Adapter adapter = *Adapters().Find("chat");
    const auto encoder =
        *SampleEncoder::Create(adapter, Phase::kSft, *tokenizer_, *text::ChatTemplate::Parse(jinja), rules);
    Record record;
    record.push_back(std::move(turns));
    const Sample sample = *MakeSample(adapter, Phase::kSft, std::move(record));
    std::vector<absl::StatusOr<OrSkip<EncodedSample>>> samples;
    for (int64_t part = 0; part < encoder.Parts(sample); ++part) samples.push_back(encoder.Encode(sample, part));
    return samples;
  }
  std::string Text(const std::vector<int32_t>& ids) { return *tokenizer_->Decode(ids, text::SpecialTokens::kKeep); }
  std::string Counted(const EncodedSample& sample) { return Text(CountedIds(sample)); }

  const std::unique_ptr<text::Tokenizer> tokenizer_ = AsciiTokenizer();
};

// Thinking is left out of replies once more turns follow.
constexpr char kForgets[] = R"({%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}
{%- if m.reasoning_content and loop.last %}{{ '[' + m.reasoning_content + ']' }}{% endif %}
{{- m.content or '' }}{% for call in m.tool_calls or [] %}{{ '{' + call.function.name + '}' }}{% endfor %}
{{- '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";

Object Thinking(const std::string& content) {
  Object message = Says("assistant", content);
  message.emplace_back("reasoning_content", "hm");
  return message;
}

TEST_F(RecordParts, ARecordMakesASampleForEachReplyThatReadsOtherwiseLater) {
  const List turns{Says("user", "q"),      Thinking("a"),     Says("user", "r"),
                   Says("assistant", "b"), Says("user", "s"), Thinking("c")};
  const auto samples = Samples(kForgets, turns, {.keep_messages = true});
  ASSERT_EQ(samples.size(), 2u);
  const auto& whole = std::get<EncodedSample>(*samples[0]);
  const auto& part = std::get<EncodedSample>(*samples[1]);
  // The turns that ask for the last reply read as they did then.
  EXPECT_EQ(Counted(whole), "b<|im_end|>[hm]c<|im_end|>");
  EXPECT_EQ(Counted(part), "[hm]a<|im_end|>");
  EXPECT_EQ(Text(part.ids), "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[hm]a<|im_end|>\n");
  EXPECT_EQ(part.prompt_text, "q");
  EXPECT_EQ(part.truth, "a");
  EXPECT_EQ(part.messages, R"([{"role":"user","content":"q"}])");
  EXPECT_EQ(whole.truth, "c");
  EXPECT_FALSE(whole.is_part);
  EXPECT_TRUE(part.is_part);
  EXPECT_FALSE(whole.rewritten || part.rewritten);
  const auto replies = Samples(kForgets, turns, {.train_on = text::TrainOn::kReplies});
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(std::get<EncodedSample>(*replies[0]).ids, whole.ids);
  EXPECT_TRUE(std::get<EncodedSample>(*replies[0]).rewritten);
  // A part whose reply would be cut off is left out.
  const auto cut = Samples(kForgets, turns, {.max_seq_len = 25});
  ASSERT_EQ(cut.size(), 2u);
  EXPECT_EQ(std::get<Skip>(*cut[0]), Skip::kOverlong);
  EXPECT_EQ(Counted(std::get<EncodedSample>(*cut[1])), "[hm]a");
}

TEST_F(RecordParts, ACallThatWouldNotBeTrainedIsRefused) {
  Object call = Thinking("");
  call.emplace_back("tool_calls", List{Object{{"name", "f"}}});
  const List turns{Says("user", "q"), call, Says("tool", "4"), Says("assistant", "a")};
  const EncodingRules replies{.train_on = text::TrainOn::kReplies};
  EXPECT_THAT(Samples(kForgets, turns, replies)[0].status(),
              Fails(absl::StatusCode::kInvalidArgument,
                    {"turn 2", "tool", "chat_template", "each_reply", "data.allow_untrained_calls"}));
  EncodingRules allowed = replies;
  allowed.allow_untrained_calls = true;
  EXPECT_EQ(Counted(std::get<EncodedSample>(*Samples(kForgets, turns, allowed)[0])), "a<|im_end|>");
  const auto each = Samples(kForgets, turns);
  ASSERT_EQ(each.size(), 2u);
  EXPECT_EQ(Counted(std::get<EncodedSample>(*each[1])), "[hm]{f}<|im_end|>");
  // A template that marks only what replies say.
  constexpr char kMarks[] =
      "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
      "{% for call in m.tool_calls or [] %}{{ call.function.name }}{% endfor %}<|im_end|>{% endfor %}";
  Object plain = Says("assistant", "");
  plain.emplace_back("tool_calls", List{Object{{"name", "f"}}});
  const auto marked = Samples(kMarks, List{Says("user", "q"), plain, Says("tool", "4"), Says("assistant", "a")});
  ASSERT_EQ(marked.size(), 1u);
  EXPECT_THAT(marked[0].status(), Fails(absl::StatusCode::kInvalidArgument, {"turn 2", "data.allow_untrained_calls"}));
}

TEST_F(RecordParts, TheSamplesOfARecordFollowOneAnother) {
  constexpr char kAfterThePoint[] =
      "{% for m in messages %}{% set said = m.content if loop.last else m.content.split('.')[-1] %}"
      "{{ m.role[0] + said + '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}a{% endif %}";
  const std::string two = R"({"role": "user", "content": "q"}, {"role": "assistant", "content": "x.y"})";
  const std::string plain = R"({"role": "user", "content": "q"}, {"role": "assistant", "content": "z"})";
  const std::string path = testing::TempDir() + "/record_parts.jsonl";
  ASSERT_TRUE(
      WriteFileAtomically(Env::Real(), path,
                          absl::StrCat("{\"messages\": [", two, ", ", two, ", ", two, "]}\n{\"messages\": [", plain,
                                       ", ", plain, "]}\nbroken\n{\"messages\": [", two, ", ", plain, "]}\n"))
          .ok());
  const std::vector<std::string> paths = {path};
  const auto dataset = *Dataset::Open(Env::Real(), paths, std::nullopt, *Adapters().Find("chat"), Phase::kSft);
  for (const int threads : {0, 2}) {
    EncodedDataset encoded(*dataset,
                           *SampleEncoder::Create(*Adapters().Find("chat"), Phase::kSft, *tokenizer_,
                                                  *text::ChatTemplate::Parse(kAfterThePoint), {}),
                           text::ContentHash{1, 0}, [&](int64_t index) { return dataset->Place(index); });
    EXPECT_EQ(encoded.size(), 4);
    encoded.CountParts(threads);
    ASSERT_EQ(encoded.size(), 7);
    EXPECT_EQ(encoded.records(), 4);
    std::vector<std::string> texts;
    std::vector<int64_t> indexes(7);
    std::vector<bool> begins;
    std::iota(indexes.begin(), indexes.end(), 0);
    for (const auto& sample : encoded.Load(indexes)) {
      texts.push_back(sample.ok() ? *tokenizer_->Decode(std::get<EncodedSample>(*sample).ids)
                                  : std::string(sample.status().message()));
    }
    for (const int64_t index : indexes) begins.push_back(encoded.BeginsRecord(index));
    EXPECT_THAT(texts, ElementsAre("uqayuqayuqax.y", "uqayuqax.y", "uqax.y", "uqazuqaz",
                                   HasSubstr("record_parts.jsonl:3: "), "uqayuqaz", "uqax.y"));
    EXPECT_THAT(begins, ElementsAre(true, false, false, true, true, true, false));
    // In any order, as a loader asks for them.
    const auto some = encoded.Load(std::vector<int64_t>{6, 1, 6});
    EXPECT_EQ(std::get<EncodedSample>(*some[0]), std::get<EncodedSample>(*some[2]));
    EXPECT_EQ(*tokenizer_->Decode(std::get<EncodedSample>(*some[1]).ids), "uqayuqax.y");
    Loader<EncodedSample> loader(encoded, {.batch_size = 1, .seed = 3, .epochs = 1, .skip_bad_records = true});
    int64_t taken = 0;
    while (true) {
      const auto batch = loader.Next();
      ASSERT_TRUE(batch.ok()) << batch.status();
      if (!*batch) break;
      if (++taken != 3) continue;
      // The position is a number of samples.
      Loader<EncodedSample> resumed(encoded, {.batch_size = 1, .seed = 3, .epochs = 1, .skip_bad_records = true});
      ASSERT_TRUE(resumed.Resume(loader.position()).ok());
      int64_t left = 0;
      while (resumed.Next()->has_value()) ++left;
      EXPECT_EQ(left, 3);
    }
    EXPECT_EQ(taken, 6);
  }
}

}  // namespace
}  // namespace tdock::data
