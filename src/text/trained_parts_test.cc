// Which tokens of a conversation are trained, and in which samples, where a template renders replies otherwise once
// more turns follow, or ends them with what the next turn begins with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "text/conversation.h"
#include "text/json_tokenizer.h"
#include "text/testing/small_tokenizers.h"
#include "text/turn_json.h"

namespace tdock::text {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using Rewritten = EncodedConversation::Rewritten;

// Bytes, and the special tokens of the templates below.
std::unique_ptr<Tokenizer> BytesAndMarkers() {
  small::Json json = small::SmallByteLevel();
  int32_t id = 262;
  for (const char* special : {"<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|start|>",
                              "<|message|>", "<|return|>", "<s>", "</s>"}) {
    json["added_tokens"].push_back(small::AddedTokenJson(id++, special, true));
  }
  TokenizerConfig config;
  config.bos = "<s>";
  config.eos = "</s>";
  return JsonTokenizer::Create(json, config, {}).value();
}

// As that of Qwen3: thinking is only shown behind the last message of the user, and empty thinking in the last turn.
constexpr char kShowsLastThinking[] = R"({%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
  {%- set content = m.content or '' %}{%- set thinking = m.reasoning_content or '' %}
  {{- '<|im_start|>' + m.role + '\n' }}
  {%- if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or thinking) %}
    {{- '<think>' + thinking + '</think>' }}
  {%- endif %}
  {{- content }}
  {%- for call in m.tool_calls or [] %}{{- '<tool_call>' + call.function.name + '</tool_call>' }}
  {{- call.function.arguments | tojson }}{%- endfor %}
  {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";

// As that of GLM: nothing but the next turn ends one.
constexpr char kMarkers[] = R"({%- for m in messages %}{{ '<|' + m.role + '|>\n' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}{{ '<tool_call>' + call.function.name }}{{ call.function.arguments | tojson }}
{{- '</tool_call>' }}{% endfor %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %})";

// As that of gpt-oss: the last turn ends otherwise.
constexpr char kReturns[] = R"({%- for m in messages %}{{ '<|start|>' + m.role + '<|message|>' + m.content }}
{%- if m.role == 'assistant' and loop.last %}<|return|>{% else %}<|end|>{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %})";

// Marks replies itself, and forgets their thinking.
constexpr char kMarks[] = R"({%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}
{%- set content = m.content if loop.last else m.content.split('</think>')[-1] %}
{%- if m.role == 'assistant' %}{% generation %}{{ content + '<|im_end|>' }}{% endgeneration %}
{%- else %}{{ content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";

// Marks what replies say, without their calls.
constexpr char kMarksContents[] = R"({%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}
{%- if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}
{%- for call in m.tool_calls or [] %}{{ call | tojson }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %})";

std::vector<Turn> TurnsOf(absl::string_view json) { return ReadTurns(ReadOrderedJson(json)).value(); }

class TrainedPartsTest : public ::testing::Test {
 protected:
  static ChatTemplate Form(absl::string_view jinja) { return ChatTemplate::Parse(jinja).value(); }

  // The text that the loss counts, a text for each run of tokens.
  std::vector<std::string> Counted(const EncodedConversation& encoded) {
    std::vector<std::string> runs;
    std::vector<int32_t> run;
    for (size_t i = 0; i <= encoded.ids.size(); ++i) {
      if (i < encoded.ids.size() && encoded.loss_mask[i] != 0) {
        run.push_back(encoded.ids[i]);
      } else if (!run.empty()) {
        runs.push_back(*tokenizer_->Decode(run, SpecialTokens::kKeep));
        run.clear();
      }
    }
    return runs;
  }
  EncodedConversation Encoded(const ChatTemplate& form, std::span<const Turn> turns, const EncodeTurns& options = {}) {
    auto encoded = EncodeConversation(form, *tokenizer_, turns, options);
    EXPECT_TRUE(encoded.ok()) << encoded.status();
    return *std::move(encoded);
  }
  // What each of the parts counts.
  std::vector<std::vector<std::string>> CountedInParts(const ChatTemplate& form, const std::vector<Turn>& turns) {
    const auto parts = PartsToTrain(form, *tokenizer_, turns);
    EXPECT_TRUE(parts.ok()) << parts.status();
    std::vector<std::vector<std::string>> counted;
    for (const TrainedPart& part : parts->parts) {
      counted.push_back(Counted(Encoded(form, std::span(turns).first(part.turns),
                                        {.train_on = TrainOn::kEachReply, .counted = part.counted})));
    }
    return counted;
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = BytesAndMarkers();
};

constexpr char kTalk[] = R"([{"role": "user", "content": "q"},
                             {"role": "assistant", "content": "a", "reasoning_content": "hm"},
                             {"role": "user", "content": "r"},
                             {"role": "assistant", "content": "b", "reasoning_content": "so"}])";

TEST_F(TrainedPartsTest, RepliesWhoseThinkingIsForgottenHaveASampleEach) {
  const ChatTemplate form = Form(kShowsLastThinking);
  EXPECT_THAT(CountedInParts(form, TurnsOf(kTalk)),
              ElementsAre(ElementsAre("<think>so</think>b<|im_end|>"), ElementsAre("<think>hm</think>a<|im_end|>")));
  // Where nothing is rewritten, one sample has them all.
  const ChatTemplate chatml = *ChatTemplate::Named("chatml");
  const std::vector<Turn> plain = {
      {Role::kUser, "q"}, {Role::kAssistant, "a"}, {Role::kUser, "r"}, {Role::kAssistant, "b"}, {Role::kUser, "s"}};
  EXPECT_THAT(CountedInParts(chatml, plain), ElementsAre(ElementsAre("a<|im_end|>", "b<|im_end|>")));
}

TEST_F(TrainedPartsTest, RepliesOfOneQuestionShareASampleIfTheyReadTheSame) {
  const ChatTemplate form = Form(kShowsLastThinking);
  const auto agent = [](absl::string_view thinking) {
    return TurnsOf(absl::StrCat(R"([{"role": "user", "content": "q"},
        {"role": "assistant", "content": null, "tool_calls": [{"name": "f"}])",
                                thinking, R"(},
        {"role": "tool", "content": "4"}, {"role": "assistant", "content": "a")",
                                thinking, R"(},
        {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}])"));
  };
  EXPECT_THAT(CountedInParts(form, agent(R"(, "reasoning_content": "hm")")),
              ElementsAre(ElementsAre("<think></think>b<|im_end|>"),
                          ElementsAre("<think>hm</think><tool_call>f</tool_call>{}<|im_end|>",
                                      "<think>hm</think>a<|im_end|>")));
  // Without thinking, a call reads otherwise as soon as the tool has answered.
  EXPECT_THAT(CountedInParts(form, agent("")),
              ElementsAre(ElementsAre("<think></think>b<|im_end|>"), ElementsAre("<think></think>a<|im_end|>"),
                          ElementsAre("<think></think><tool_call>f</tool_call>{}<|im_end|>")));
  const EncodedConversation whole = Encoded(form, agent(""));
  EXPECT_THAT(whole.uncounted, ElementsAre(1, 3));
}

TEST_F(TrainedPartsTest, EachReplyIsTrainedOnceAndAsItWasGenerated) {
  std::minstd_rand random(1);
  for (int round = 0; round < 15; ++round) {
    std::vector<Turn> turns;
    const size_t size = 2 + random() % 12;
    while (turns.size() < size) {
      turns.push_back({Role::kUser, absl::StrCat("q", turns.size())});
      while (turns.size() < size) {
        Turn reply{Role::kAssistant, absl::StrCat("a", turns.size())};
        if (random() % 2 == 0) reply.fields = R"({"reasoning_content":"hm"})";
        if (random() % 8 == 0) reply.train = false;
        turns.push_back(std::move(reply));
        if (turns.size() == size || random() % 2 == 0) break;
        turns.push_back({Role::kTool, "4"});
      }
    }
    for (const char* jinja : {kShowsLastThinking, kReturns, kMarkers}) {
      if (jinja != kShowsLastThinking) {
        for (Turn& turn : turns) turn.fields = "";
      }
      const ChatTemplate form = Form(jinja);
      const auto parts = PartsToTrain(form, *tokenizer_, turns);
      ASSERT_TRUE(parts.ok()) << parts.status();
      std::vector<int> times(turns.size());
      for (const TrainedPart& part : parts->parts) {
        const auto first = std::span(turns).first(part.turns);
        const EncodedConversation encoded =
            Encoded(form, first, {.train_on = TrainOn::kEachReply, .counted = part.counted});
        for (size_t i = 0; i < first.size(); ++i) {
          std::vector<int32_t> ids;
          for (size_t t = 0; t < encoded.ids.size(); ++t) {
            if (encoded.loss_mask[t] != 0 && encoded.turns[t] == static_cast<int32_t>(i)) ids.push_back(encoded.ids[t]);
          }
          if (ids.empty()) continue;
          ++times[i];
          if (jinja == kMarkers) continue;  // the marker is that of the turn that follows
          // The same as in the conversation up to it, alone.
          std::vector<bool> only(i + 1);
          only[i] = true;
          EXPECT_THAT(Counted(Encoded(form, first.first(i + 1), {.counted = only})),
                      ElementsAre(*tokenizer_->Decode(ids, SpecialTokens::kKeep)));
        }
      }
      for (size_t i = 0; i < turns.size(); ++i) {
        EXPECT_EQ(times[i], turns[i].role == Role::kAssistant && turns[i].train.value_or(true) ? 1 : 0) << i;
      }
      EXPECT_THAT(parts->untrained, ElementsAre());
      // However many parts there are.
      const auto replies =
          std::count_if(turns.begin(), turns.end(), [](const Turn& turn) { return turn.role == Role::kAssistant; });
      EXPECT_LE(parts->renders, 1 + 2 * replies);
    }
  }
}

TEST_F(TrainedPartsTest, TheNextTurnsMarkerEndsAReplyThatHasNoOtherEnd) {
  const ChatTemplate form = Form(kMarkers);
  std::vector<Turn> turns = {{Role::kUser, "q"}, {Role::kAssistant, "a"}, {Role::kUser, "r"}, {Role::kAssistant, "b"}};
  const EncodedConversation encoded = Encoded(form, turns);
  EXPECT_THAT(Counted(encoded), ElementsAre("\na<|user|>", "\nb<|user|>"));
  EXPECT_THAT(encoded.text, EndsWith("b<|user|>"));
  EXPECT_EQ(encoded.turns.back(), 3);
  EXPECT_EQ(encoded.loss_mask.size(), encoded.ids.size());
  EXPECT_EQ(Encoded(form, turns, {.max_tokens = encoded.ids.size()}).ids, encoded.ids);
  EXPECT_THAT(EncodeConversation(form, *tokenizer_, turns, {.max_tokens = encoded.ids.size() - 1}).status(),
              Fails(absl::StatusCode::kOutOfRange, {std::to_string(encoded.ids.size() - 1)}));
  turns[3].train = false;
  EXPECT_THAT(Encoded(form, turns).text, EndsWith("b"));
  EXPECT_THAT(Encoded(form, turns, {.generation_prompt = true}).text, EndsWith("b<|assistant|>"));
  const std::vector<Turn> calls = TurnsOf(R"([{"role": "user", "content": "q"},
      {"role": "assistant", "tool_calls": [{"name": "f"}]}, {"role": "tool", "content": "4"},
      {"role": "assistant", "tool_calls": [{"name": "g"}]}])");
  EXPECT_THAT(Counted(Encoded(form, calls)),
              ElementsAre("\n<tool_call>f{}</tool_call><|tool|>", "\n<tool_call>g{}</tool_call><|tool|>"));
}

TEST_F(TrainedPartsTest, AReplyThatEndsOtherwiseLaterIsTrainedWithTheEndThatItHad) {
  const ChatTemplate form = Form(kReturns);
  const std::vector<Turn> turns = {
      {Role::kUser, "q"}, {Role::kAssistant, "a"}, {Role::kUser, "r"}, {Role::kAssistant, "b"}};
  const EncodedConversation replies = Encoded(form, turns);
  EXPECT_THAT(replies.rewritten, ElementsAre(Rewritten{1, Rewritten::How::kEnd}));
  EXPECT_THAT(Counted(replies), ElementsAre("<|message|>a", "<|message|>b<|return|>"));
  EXPECT_THAT(CountedInParts(form, turns),
              ElementsAre(ElementsAre("<|message|>b<|return|>"), ElementsAre("<|message|>a<|return|>")));
}

TEST_F(TrainedPartsTest, RepliesThatATemplateMarksAreTrainedAsTheyWereGenerated) {
  const ChatTemplate form = Form(kMarks);
  const std::vector<Turn> turns = {{Role::kUser, "q"},
                                   {Role::kAssistant, "<think>hm</think>a"},
                                   {Role::kUser, "r"},
                                   {Role::kAssistant, "<think>so</think>b"}};
  EXPECT_THAT(Counted(Encoded(form, turns)), ElementsAre("a<|im_end|>", "<think>so</think>b<|im_end|>"));
  EXPECT_THAT(CountedInParts(form, turns),
              ElementsAre(ElementsAre("<think>so</think>b<|im_end|>"), ElementsAre("<think>hm</think>a<|im_end|>")));
}

TEST_F(TrainedPartsTest, ACallThatIsNotMarkedIsTold) {
  const ChatTemplate form = Form(kMarksContents);
  const std::vector<Turn> turns = TurnsOf(R"([{"role": "user", "content": "q"},
      {"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}, {"role": "tool", "content": "4"},
      {"role": "assistant", "content": "a"}])");
  EXPECT_THAT(Encoded(form, turns).uncounted, ElementsAre(1));
  const auto parts = PartsToTrain(form, *tokenizer_, turns);
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_THAT(parts->untrained, ElementsAre(1));
  EXPECT_THAT(parts->parts, ElementsAre(TrainedPart{4, {false, false, false, true}}));
}

TEST_F(TrainedPartsTest, WhatATurnSaysOfItselfCounts) {
  const ChatTemplate form = Form(kShowsLastThinking);
  std::vector<Turn> turns = TurnsOf(kTalk);
  turns[3].train = false;
  turns[2].train = true;
  EXPECT_THAT(CountedInParts(form, turns),
              ElementsAre(ElementsAre("<|im_start|>user\nr<|im_end|>\n"), ElementsAre("<think>hm</think>a<|im_end|>")));
  turns[2].train = std::nullopt;
  EXPECT_THAT(CountedInParts(form, turns), ElementsAre(ElementsAre("<think>hm</think>a<|im_end|>")));
  turns[1].train = false;
  EXPECT_THAT(CountedInParts(form, turns), ElementsAre());
}

TEST_F(TrainedPartsTest, ACallThatTheTemplateDropsIsRefused) {
  // As that of DeepSeek's R1 distillations: a turn with a content calls nothing.
  const ChatTemplate form = Form(R"({%- for m in messages %}{% if m.content is none %}
{%- for call in m.tool_calls %}{{ call.function.name + call.function.arguments }}{% endfor %}
{%- else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %})");
  const auto encode = [&](absl::string_view content) {
    return EncodeConversation(form, *tokenizer_,
                              TurnsOf(absl::StrCat(R"([{"role": "user", "content": "q"},
        {"role": "assistant", "content": )",
                                                   content, R"(, "tool_calls": [{"name": "look_up"}]}])")));
  };
  EXPECT_EQ(encode("null")->text, "q<|im_end|>look_up{}<|im_end|>");
  EXPECT_EQ(encode("\"\"")->text, "q<|im_end|>look_up{}<|im_end|>");
  EXPECT_THAT(encode("\"Let me see.\"").status(),
              Fails(absl::StatusCode::kInvalidArgument, {"turn 2", "\"tool_calls\"", "chat_template", "leave out"}));
  // One that renders the first call alone.
  const ChatTemplate first = Form(R"({%- for m in messages %}{{ m.content or '' }}
{%- if m.tool_calls %}{{ m.tool_calls[0].function.name }}{{ m.tool_calls[0].function.arguments | tojson }}{% endif %}
{%- endfor %})");
  for (const char* names : {R"({"name": "f"}, {"name": "g"})", R"({"name": "f"}, {"name": "f"})"}) {
    EXPECT_THAT(EncodeConversation(first, *tokenizer_,
                                   TurnsOf(absl::StrCat(R"([{"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": [)",
                                                        names, "]}]")))
                    .status(),
                Fails(absl::StatusCode::kInvalidArgument, {"turn 2", "\"tool_calls\""}));
  }
}

}  // namespace
}  // namespace tdock::text
