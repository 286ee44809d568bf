#include "data/encode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/testing/fails.h"
#include "data/mini_dataset.h"
#include "data/phase_split.h"
#include "data/testing/char_vocabulary.h"

namespace tdock::data {
namespace {

using testing::ElementsAre;
using text::Role;
using text::Turn;

Object Message(const std::string& role, const std::string& content) { return {{"role", role}, {"content", content}}; }

// A record of this list; whether one in braces is that or a copy of the list, compilers disagree.
Record OfOne(List list) {
  Record record;
  record.emplace_back(std::move(list));
  return record;
}

class Encoding : public testing::Test {
 protected:
  // The sample of a record, or what is wrong with it.
  absl::StatusOr<OrSkip<EncodedSample>> Encoded(const std::string& name, Phase phase, Record record,
                                                EncodingRules rules = {}) {
    const Adapter adapter = *Adapters().Find(name);
    const auto encoder =
        SampleEncoder::Create(adapter, phase, *tokenizer_, *text::ChatTemplate::Named("chatml"), rules);
    if (!encoder.ok()) return encoder.status();
    const auto sample = MakeSample(adapter, phase, std::move(record));
    if (!sample.ok()) return sample.status();
    return encoder->Encode(*sample);
  }
  EncodedSample Made(const std::string& name, Phase phase, Record record, EncodingRules rules = {}) {
    auto encoded = Encoded(name, phase, std::move(record), rules);
    EXPECT_TRUE(encoded.ok()) << encoded.status();
    EXPECT_TRUE(std::holds_alternative<EncodedSample>(*encoded));
    return std::get<EncodedSample>(*encoded);
  }
  Skip Skipped(const std::string& name, Phase phase, Record record, EncodingRules rules = {}) {
    return std::get<Skip>(*Encoded(name, phase, std::move(record), rules));
  }
  std::string Text(const std::vector<int32_t>& ids) { return *tokenizer_->Decode(ids, text::SpecialTokens::kKeep); }
  std::string Counted(const EncodedSample& sample) { return Text(CountedIds(sample)); }

  const std::unique_ptr<text::Tokenizer> tokenizer_ = AsciiTokenizer();
};

TEST_F(Encoding, TextIsPutTogetherAsItStands) {
  const EncodedSample sft = Made("custom", Phase::kSft, {" Human: q Assistant:", " a"});
  EXPECT_EQ(Text(sft.ids), " Human: q Assistant: a<eos>");
  EXPECT_EQ(Counted(sft), " a<eos>");
  EXPECT_EQ(Counted(Made("custom", Phase::kSft, {"p", "a"}, {.train_on = text::TrainOn::kEverything})), "pa<eos>");
  const EncodedSample pair = Made("Dahoas/rm-static", Phase::kReward, {"p", "good", "bad"});
  EXPECT_EQ(Text(pair.ids), "pgood<eos>");
  EXPECT_EQ(Text(pair.rejected), "pbad<eos>");
  EXPECT_EQ(Text(Made("custom", Phase::kPrompt, {"p"}).ids), "p");
  EXPECT_EQ(Text(Made("text", Phase::kUnsupervised, {"some text"}).ids), "some text");
}

TEST_F(Encoding, TurnsGoThroughTheTemplate) {
  const EncodedSample sft = Made(
      "chat", Phase::kSft,
      OfOne(List{Message("user", "q"), Message("assistant", "a"), Message("user", "r"), Message("assistant", "b")}));
  EXPECT_EQ(Text(sft.ids),
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nr<|im_end|>\n"
            "<|im_start|>assistant\nb<|im_end|>\n");
  EXPECT_EQ(Counted(sft), "a<|im_end|>b<|im_end|>");
  EXPECT_EQ(Text(Made("chat", Phase::kPrompt, {"q"}).ids), "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n");
  const EncodedSample pair = Made("chat", Phase::kReward, {"q", List{Message("assistant", "good")}, "bad"});
  EXPECT_EQ(Text(pair.rejected), "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nbad<|im_end|>\n");
  EXPECT_EQ(Counted(pair), "good<|im_end|>");
}

TEST_F(Encoding, TheTurnsThatAskForAReplyAreKeptWhereTheyAreWanted) {
  const EncodingRules rules{.keep_messages = true};
  const Record turns = OfOne(List{Message("user", "q \"e\""), Message("assistant", "a")});
  EXPECT_EQ(Made("chat", Phase::kSft, turns, rules).messages, R"([{"role":"user","content":"q \"e\""}])");
  EXPECT_EQ(Made("chat", Phase::kSft, turns).messages, "");
  EXPECT_EQ(Made("chat", Phase::kPrompt, {"q"}, rules).messages, R"([{"role":"user","content":"q"}])");
  EXPECT_EQ(Made("custom", Phase::kPrompt, {"p"}, rules).messages, "");
}

TEST_F(Encoding, ATurnMaySayWhetherItTrains) {
  Object first = Message("assistant", "a");
  first.emplace_back("train", false);
  EXPECT_EQ(Counted(Made("chat", Phase::kSft,
                         OfOne(List{Message("user", "q"), first, Message("user", "r"),
                                    Object{{"from", "gpt"}, {"value", "b"}}}))),
            "b<|im_end|>");
}

TEST_F(Encoding, SpecialTokensInTextAreText) {
  const EncodedSample prompt = Made("custom", Phase::kPrompt, {"x<eos><|im_end|>"});
  for (const int32_t id : prompt.ids) EXPECT_FALSE(tokenizer_->IsSpecial(id));
  EXPECT_EQ(Text(prompt.ids), "x<eos><|im_end|>");
}

TEST_F(Encoding, WhatIsAbsentLeavesTheSampleOut) {
  EXPECT_EQ(Skipped("custom", Phase::kSft, {"p", Value()}), Skip::kIncomplete);
  EXPECT_EQ(Skipped("custom", Phase::kReward, {"p", "a", Value()}), Skip::kIncomplete);
  EXPECT_EQ(Skipped("custom", Phase::kPrompt, {Value()}), Skip::kIncomplete);
  EXPECT_EQ(Skipped("text", Phase::kUnsupervised, {Value()}), Skip::kIncomplete);
  EXPECT_EQ(Skipped("chat", Phase::kSft, OfOne(List{Message("user", "q")})), Skip::kUncounted);
}

TEST_F(Encoding, OverlongPromptsFollowTheRule) {
  const EncodingRules rules{.max_seq_len = 6, .max_prompt_len = 4};
  EXPECT_EQ(Text(Made("custom", Phase::kPrompt, {"1234"}, rules).ids), "1234");
  EXPECT_EQ(Skipped("custom", Phase::kPrompt, {"12345"}, rules), Skip::kOverlong);
  EncodingRules cut = rules;
  cut.overlong_prompts = OverlongPrompts::kTruncateLeft;
  const EncodedSample kept = Made("custom", Phase::kPrompt, {"12345"}, cut);
  EXPECT_EQ(Text(kept.ids), "2345");
  EXPECT_TRUE(kept.truncated);
  EncodingRules strict = rules;
  strict.overlong_prompts = OverlongPrompts::kError;
  EXPECT_THAT(Encoded("custom", Phase::kPrompt, {"12345"}, strict).status(),
              Fails(absl::StatusCode::kOutOfRange, {"5 tokens", "at most 4", "data.max_prompt_length"}));
  EXPECT_THAT(Encoded("custom", Phase::kSft, {"123456789", "a"}, strict).status(),
              Fails(absl::StatusCode::kOutOfRange, {"9 tokens", "at most 5", "data.max_length"}));
}

TEST_F(Encoding, LongSequencesLoseTheirEnd) {
  const EncodingRules rules{.max_seq_len = 4};
  const EncodedSample sft = Made("custom", Phase::kSft, {"pp", "aaa"}, rules);
  EXPECT_EQ(Text(sft.ids), "ppaa");
  EXPECT_EQ(sft.loss_mask.size(), 4u);
  EXPECT_TRUE(sft.truncated);
  EXPECT_FALSE(Made("custom", Phase::kSft, {"pp", "a"}, rules).truncated);
  // Nothing would be left to learn.
  EXPECT_EQ(Skipped("custom", Phase::kSft, {"pppp", "a"}, rules), Skip::kOverlong);
  EXPECT_EQ(Skipped("custom", Phase::kReward, {"pppp", "a", "b"}, rules), Skip::kOverlong);
  const EncodedSample pair = Made("custom", Phase::kReward, {"p", "a", "bbbb"}, rules);
  EXPECT_EQ(Text(pair.rejected), "pbbb");
  EXPECT_TRUE(pair.truncated);
}

TEST_F(Encoding, AWrongTypeIsNamed) {
  const auto expect = [&](const std::string& name, Phase phase, Record record, std::vector<std::string> names) {
    EXPECT_THAT(Encoded(name, phase, std::move(record)).status(),
                Fails(absl::StatusCode::kInvalidArgument, std::move(names)));
  };
  expect("custom", Phase::kPrompt, {int64_t{3}}, {"'prompt'", "a number;", "text is"});
  expect("custom", Phase::kPrompt, OfOne(List{}), {"'prompt'", "a list;", "text is"});
  expect("chat", Phase::kPrompt, {2.5}, {"'prompt'", "a number;", "text or", "turns"});
  expect("chat", Phase::kSft, {"x"}, {"'messages'", "text;", "turns"});
  expect("chat", Phase::kSft, OfOne(List{Message("user", "q"), true}),
         {"'messages'", "turn 2", "truth value", "\"role\"", "\"content\""});
  expect("chat", Phase::kSft, OfOne(List{Message("robot", "q")}),
         {"'messages'", "turn 1", "\"robot\"", "system", "developer", "user", "human", "assistant", "gpt", "tool",
          "observation", "function"});
  expect("chat", Phase::kSft, OfOne(List{Object{{"role", "user"}}}),
         {"'messages'", "turn 1", "\"content\" (or \"value\")", "missing"});
  expect("chat", Phase::kReward, {"q", List{Message("user", "x")}, "b"}, {"'chosen'", "assistant"});
}

TEST_F(Encoding, AFieldOfATurnThatTheTemplateDoesNotMentionIsRefused) {
  const auto message = [&](const Object& turn) {
    return std::string(Encoded("chat", Phase::kPrompt, OfOne(List{turn})).status().message());
  };
  const auto with = [](const std::string& name, Value value) {
    Object turn = Message("user", "q");
    turn.emplace_back(name, std::move(value));
    return turn;
  };
  EXPECT_THAT(message(with("tool_calls", List{Object{{"name", "f"}}})),
              Mentions({"turn 1", "\"tool_calls\"", "\"chatml\""}));
  EXPECT_THAT(message(with("reasoning_content", "Let me think.")), Mentions({"\"reasoning_content\""}));
  EXPECT_THAT(message(with("weight", int64_t{0})), Mentions({"\"weight\""}));
  EXPECT_THAT(message(with("from", "gpt")), Mentions({"'prompt'", "turn 1", "\"role\" and \"from\""}));
  EXPECT_THAT(message(with("value", "q")), Mentions({"'prompt'", "turn 1", "\"content\" and \"value\""}));
  for (const auto& [name, value] : std::vector<std::pair<std::string, Value>>{{"tool_calls", Value()},
                                                                              {"tool_calls", List{}},
                                                                              {"name", ""},
                                                                              {"meta", Object{}},
                                                                              {"from", Value()},
                                                                              {"train", Value()}}) {
    EXPECT_EQ(message(with(name, value)), "") << name;
  }
  EXPECT_EQ(message({{"from", Value()}, {"role", "user"}, {"value", Value()}, {"content", "q"}}), "");
}

TEST(MakeSample, TurnsKeepTheirFieldsAndTheToolsTheyMayCall) {
  Adapter adapter{.name = "chat", .style = Adapter::Style::kChat, .conversation = "messages", .tools = "tools"};
  Object calls{{"role", "assistant"},
               {"content", Value()},
               {"tool_calls", List{Object{{"name", "f"}, {"arguments", Object{{"x", int64_t{1}}, {"y", Value()}}}}}}};
  const auto made = [&](Value turn, Value tools) {
    return MakeSample(adapter, Phase::kSft, {List{std::move(turn)}, std::move(tools)});
  };
  const auto sample = made(calls, List{Object{{"name", "f"}, {"default", Value()}}});
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_EQ(sample->conversation[0].fields,
            R"({"tool_calls":[{"type":"function","function":{"name":"f","arguments":{"x":1}}}]})");
  EXPECT_FALSE(sample->conversation[0].has_content);
  EXPECT_EQ(sample->context.tools, R"([{"name": "f"}])");
  EXPECT_EQ(made(calls, "[1]")->context.tools, "[1]");
  EXPECT_THAT(made(calls, int64_t{1}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"'tools'", "a number;", "list", "JSON"}));
  calls[0].second = "user";
  EXPECT_THAT(made(calls, Value()).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"\"content\" (or \"value\")", "missing"}));
}

TEST_F(Encoding, AnAnswerMayRepeatThePrompt) {
  const std::string expected = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n";
  const List whole{Message("user", "q"), Message("assistant", "a")};
  for (const Value& prompt : {Value("q"), Value(List{Message("user", "q")})}) {
    EXPECT_EQ(Text(Made("chat", Phase::kReward, {prompt, whole, "b"}).ids), expected);
    EXPECT_EQ(Text(Made("chat", Phase::kReward, {prompt, "b", whole}).rejected), expected);
  }
  const List longer{Message("assistant", "a"), Message("user", "r"), Message("assistant", "b")};
  EXPECT_EQ(Text(Made("chat", Phase::kReward, {"q", longer, "b"}).ids),
            expected + "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n");
  const auto status = [&](Value prompt, Value rejected) {
    return Encoded("chat", Phase::kReward, {std::move(prompt), "a", std::move(rejected)}).status();
  };
  EXPECT_THAT(status("p", whole),
              Fails(absl::StatusCode::kInvalidArgument, {"column 'rejected'", "assistant", "prompt"}));
  EXPECT_THAT(status(List{Message("system", "s"), Message("user", "q")}, whole),
              Fails(absl::StatusCode::kInvalidArgument, {"column 'rejected'"}));
}

TEST(SampleEncoder, NeedsATemplateForTurns) {
  const auto tokenizer = AsciiTokenizer();
  EXPECT_THAT(SampleEncoder::Create(*Adapters().Find("chat"), Phase::kPrompt, *tokenizer, std::nullopt, {}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"\"chat\"", "data.template"}));
  EXPECT_TRUE(SampleEncoder::Create(*Adapters().Find("custom"), Phase::kPrompt, *tokenizer, std::nullopt, {}).ok());
}

TEST(Adapters, AnUnknownNameIsToldHowToAddOne) {
  EXPECT_THAT(Adapters().Find("my/data").status(),
              Fails(absl::StatusCode::kNotFound,
                    {"\"my/data\"", "Dahoas/full-hh-rlhf, Dahoas/rm-static, chat, custom, text", "data.adapters",
                     "\"my/data: {style: text, prompt: …, chosen: …, rejected: …}\"", "\"custom\"",
                     "data.columns.prompt", "\"auto\""}));
}

TEST_F(Encoding, SamplesCarryWhatAnEvaluationNeeds) {
  const EncodedSample text = Made("custom", Phase::kSft, {" Human: q Assistant:", " a"});
  EXPECT_EQ(text.prompt_text, " Human: q Assistant:");
  EXPECT_EQ(text.truth, " a");
  EXPECT_EQ(text.source, "custom");
  EXPECT_EQ(Text({text.ids.begin(), text.ids.begin() + text.prompt_tokens}), " Human: q Assistant:");
  const List talk{Message("user", "q"), Message("assistant", "a"), Message("user", "r"), Message("assistant", "b")};
  const EncodedSample chat = Made("chat", Phase::kSft, OfOne(talk));
  EXPECT_EQ(chat.prompt_text, "r");
  EXPECT_EQ(chat.truth, "b");
  EXPECT_EQ(Text({chat.ids.begin(), chat.ids.begin() + chat.prompt_tokens}),
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nr<|im_end|>\n"
            "<|im_start|>assistant\n");
  const EncodedSample prompt = Made("chat", Phase::kPrompt, OfOne(List{Message("system", "s"), Message("user", "q")}));
  EXPECT_EQ(prompt.prompt_text, "q");
  EXPECT_EQ(prompt.truth, "");
  EXPECT_EQ(prompt.prompt_tokens, static_cast<int64_t>(prompt.ids.size()));
  // The last reply is cut off.
  const EncodedSample cut = Made("chat", Phase::kSft, OfOne(talk), {.max_seq_len = chat.prompt_tokens});
  EXPECT_EQ(cut.prompt_tokens, 0);
}

TEST_F(Encoding, ATextToLearnCountsAsAWhole) {
  const EncodedSample sft = Made("text", Phase::kSft, {"some text"});
  EXPECT_EQ(Text(sft.ids), "some text<eos>");
  EXPECT_EQ(Counted(sft), "some text<eos>");
  EXPECT_EQ(sft.prompt_tokens, 0);
  EXPECT_EQ(Skipped("text", Phase::kSft, {""}), Skip::kUncounted);
}

TEST_F(Encoding, AnEmptyPromptIsNone) { EXPECT_EQ(Skipped("custom", Phase::kPrompt, {""}), Skip::kEmpty); }

TEST_F(Encoding, TurnsOfToolsGoThroughTheTemplate) {
  Object answer = Message("tool", "4");
  answer.emplace_back("tool_call_id", "call_1");
  answer.emplace_back("name", "add");
  EXPECT_EQ(Text(Made("chat", Phase::kPrompt, OfOne(List{Message("user", "q"), answer})).ids),
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>tool\n4<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(Text(Made("chat", Phase::kPrompt, OfOne(List{Object{{"from", "observation"}, {"value", "4"}}})).ids),
            "<|im_start|>tool\n4<|im_end|>\n<|im_start|>assistant\n");
}

TEST(Adapters, AreAddedInYaml) {
  Adapters adapters;
  ASSERT_TRUE(adapters
                  .AddYaml("my/data.v2:\n  style: chat\n  prompt: question\n  chosen: answer\n  label: score\n"
                           "custom: {text: body}\n",
                           "a.yaml")
                  .ok());
  EXPECT_EQ(*adapters.Find("my/data.v2"), (Adapter{.name = "my/data.v2",
                                                   .style = Adapter::Style::kChat,
                                                   .prompt = "question",
                                                   .chosen = "answer",
                                                   .label = "score"}));
  EXPECT_EQ(*adapters.Find("custom"), (Adapter{.name = "custom", .text = "body"}));
  EXPECT_THAT(*ColumnsOf(*adapters.Find("my/data.v2"), Phase::kSft), ElementsAre("question", "answer", "score"));
  EXPECT_THAT(ColumnsOf(*adapters.Find("custom"), Phase::kPrompt).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"\"custom\"", "\"prompt\"", "grpo", "data.columns.prompt"}));
}

TEST(Adapters, TellEverythingThatIsWrong) {
  Adapters adapters;
  const absl::Status wrong = adapters.AddYaml("good:\n  prompt: p\nx:\n  promt: q\n  style: chatty\ny: z\n", "a.yaml");
  EXPECT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
  const std::vector<std::string> lines = absl::StrSplit(wrong.message(), '\n');
  EXPECT_THAT(lines, ElementsAre(Mentions({"a.yaml:4:", "x.promt",
                                           "style, prompt, input, chosen, rejected, conversation, label, truth, "
                                           "truth_after, source",
                                           "and text"}),
                                 Mentions({"a.yaml:5:", "x.style", "text, chat", "alpaca"}),
                                 Mentions({"a.yaml:6:", " y:", "\"my_data: {prompt: question}\""})));
  EXPECT_FALSE(adapters.Find("good").ok());
}

TEST(Sample, HasTheTruthTheSourceAndWhatIsKept) {
  const Adapter adapter{.name = "x", .prompt = "p", .truth = "t", .source = "s", .keep = {"k", "l"}};
  EXPECT_THAT(*ColumnsOf(adapter, Phase::kPrompt), ElementsAre("p", "t", "s", "k", "l"));
  const auto sample = MakeSample(adapter, Phase::kPrompt, {"p", int64_t{4}, "gsm8k", List{}, Value()});
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_EQ(sample->truth, "4");
  EXPECT_EQ(sample->source, "gsm8k");
  EXPECT_THAT(sample->kept, ElementsAre("[]", ""));
  EXPECT_THAT(MakeSample(adapter, Phase::kPrompt, {"p", std::nan(""), "s", "", ""}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"column 't'", "nan", "finite"}));
  EXPECT_THAT(MakeSample(adapter, Phase::kPrompt, {"p", "t", "s", "", std::nan("")}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"column 'l'", "nan", "finite"}));
}

TEST(Sample, TheTruthMayFollowAMark) {
  const Adapter adapter{.name = "x", .prompt = "p", .truth = "t", .truth_after = "####"};
  const auto truth = [&](Value cell) {
    const auto sample = MakeSample(adapter, Phase::kPrompt, {"p", std::move(cell)});
    return sample.ok() ? sample->truth : std::string(sample.status().message());
  };
  EXPECT_EQ(truth("2 + 2 #### no #### 1,004\n"), "1,004");
  EXPECT_THAT(truth("4"), Mentions({"column 't'", "\"####\""}));
}

TEST(Sample, AlpacasPromptHasItsText) {
  Adapter adapter{
      .name = "x", .style = Adapter::Style::kAlpaca, .prompt = "instruction", .input = "input", .chosen = "output"};
  const auto prompt = [&](Value input) {
    const auto sample = MakeSample(adapter, Phase::kSft, {"Add.", std::move(input), "4"});
    if (!sample.ok()) return std::string(sample.status().message());
    const auto* text = std::get_if<std::string>(&*sample->prompt);
    return text != nullptr ? *text : std::get<std::vector<Turn>>(*sample->prompt)[0].content;
  };
  // The prompts of Stanford Alpaca, word for word: models were trained on them.
  const std::string without =
      "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
      "### Instruction:\nAdd.\n\n### Response:";
  EXPECT_EQ(prompt(""), without);
  EXPECT_EQ(prompt(Value()), without);
  EXPECT_EQ(prompt("2 and 2"),
            "Below is an instruction that describes a task, paired with an input that provides further context. Write "
            "a response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n2 and "
            "2\n\n### Response:");
  EXPECT_THAT(prompt(int64_t{2}), Mentions({"column 'input'", "a number;", "text is"}));
  adapter.style = Adapter::Style::kChat;
  EXPECT_EQ(prompt("2 and 2"), "Add.\n2 and 2");
}

TEST(Sample, ThePromptMayBeWhatBothAnswersBeginWith) {
  const Adapter adapter{.name = "x", .style = Adapter::Style::kChat, .chosen = "chosen", .rejected = "rejected"};
  const List good{Message("user", "q"), Message("assistant", "a"), Message("user", "r"), Message("assistant", "good")};
  List bad = good;
  bad.back() = Message("assistant", "bad");
  EXPECT_THAT(*ColumnsOf(adapter, Phase::kReward), ElementsAre("chosen", "rejected"));
  const auto pair = MakeSample(adapter, Phase::kReward, {good, bad});
  ASSERT_TRUE(pair.ok()) << pair.status();
  EXPECT_EQ(std::get<std::vector<Turn>>(*pair->prompt).size(), 3u);
  EXPECT_EQ(pair->chosen, Sample::Part(std::vector<Turn>{{.role = Role::kAssistant, .content = "good"}}));
  EXPECT_EQ(pair->rejected, Sample::Part(std::vector<Turn>{{.role = Role::kAssistant, .content = "bad"}}));
  EXPECT_EQ(MakeSample(adapter, Phase::kSft, OfOne(good))->conversation.size(), 4u);
  EXPECT_THAT(
      MakeSample(adapter, Phase::kReward, {good, List{Message("user", "z"), Message("assistant", "a")}}).status(),
      Fails(absl::StatusCode::kInvalidArgument, {"column 'rejected'", "prompt", "turn 1"}));
  EXPECT_THAT(MakeSample(adapter, Phase::kReward, {"good", bad}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"column 'chosen'", "text;", "turns", "prompt"}));
}

TEST(Sample, LabelsAreNumbers) {
  Adapter adapter{.name = "x", .prompt = "p", .label = "l"};
  for (const auto& [value, label] : std::vector<std::pair<Value, double>>{
           {Value(true), 1}, {Value(false), 0}, {Value(int64_t{-3}), -3}, {Value(0.5), 0.5}, {Value("1e2"), 100}}) {
    EXPECT_EQ(MakeSample(adapter, Phase::kPrompt, {"p", value})->label, label);
  }
  EXPECT_THAT(MakeSample(adapter, Phase::kPrompt, {"p", "good"}).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"column 'l'", "text;", "a number"}));
  EXPECT_EQ(MakeSample(adapter, Phase::kPrompt, {"p", Value()})->label, std::nullopt);
  for (const auto& [value, shown] : std::vector<std::pair<Value, std::string>>{
           {Value("nan"), "nan"}, {Value("-inf"), "-inf"}, {Value(std::nan("")), "nan"}, {Value("1e999"), "inf"}}) {
    EXPECT_THAT(MakeSample(adapter, Phase::kPrompt, {"p", value}).status(),
                Fails(absl::StatusCode::kInvalidArgument, {"column 'l'", absl::StrCat(" ", shown, ";"), "finite"}));
  }
}

TEST(PhaseSplit, HasDeepSpeedChatsBoundaries) {
  const auto boundaries = [](absl::string_view shares, int64_t size) {
    return PhaseBoundaries(size, *ParseShares(shares));
  };
  EXPECT_THAT(boundaries("2,4,4", 10), ElementsAre(0, 2, 6, 10));
  EXPECT_THAT(boundaries("2,4,4", 11), ElementsAre(0, 3, 7, 11));
  EXPECT_THAT(boundaries("2,4,4", 7), ElementsAre(0, 1, 4, 7));
  EXPECT_THAT(boundaries("2,4,4", 2), ElementsAre(0, 0, 1, 2));
  EXPECT_THAT(boundaries("6,2,2", 7), ElementsAre(0, 5, 6, 7));
  EXPECT_THAT(boundaries("1,1,1", 10), ElementsAre(0, 4, 7, 10));
  EXPECT_THAT(boundaries("1,1,1,1", 6), ElementsAre(0, 0, 2, 4, 6));
  EXPECT_THAT(boundaries("1,0", 0), ElementsAre(0, 0, 0));
}

TEST(PhaseSplit, PhasesShareOutEveryRecord) {
  for (const int64_t size : {0, 1, 10, 997}) {
    std::vector<int64_t> all;
    for (const size_t phase : {0, 1, 2}) {
      const std::vector<int64_t> some = PhaseIndexes(size, *ParseShares("2,4,4"), phase, 7);
      EXPECT_EQ(some, PhaseIndexes(size, *ParseShares("2,4,4"), phase, 7));
      all.insert(all.end(), some.begin(), some.end());
    }
    if (size == 997) {
      EXPECT_FALSE(std::is_sorted(all.begin(), all.end()));
      EXPECT_NE(PhaseIndexes(size, *ParseShares("2,4,4"), 1, 7), PhaseIndexes(size, *ParseShares("2,4,4"), 1, 8));
    }
    std::sort(all.begin(), all.end());
    for (int64_t i = 0; i < size; ++i) ASSERT_EQ(all[static_cast<size_t>(i)], i);
  }
}

TEST(PhaseSplit, RefusesWhatIsNoListOfShares) {
  for (const char* shares : {"", "2,,4", "a", "-1,2", "0,0", "inf,1", "nan"}) {
    EXPECT_EQ(ParseShares(shares).status().code(), absl::StatusCode::kInvalidArgument) << shares;
  }
}

std::vector<size_t> Sizes(const std::vector<std::vector<int>>& chunks) {
  std::vector<size_t> sizes;
  for (const auto& chunk : chunks) sizes.push_back(chunk.size());
  return sizes;
}

TEST(MiniDataset, CutsEachBatchInChunks) {
  for (const auto& [batch, sizes] :
       std::vector<std::pair<size_t, std::vector<size_t>>>{{3, {3}}, {5, {4, 1}}, {9, {4, 4, 1}}}) {
    MiniDataset<int> mini(1, 4);
    EXPECT_EQ(Sizes(**mini.Add(std::vector<int>(batch))), sizes);
    // It is empty again.
    EXPECT_EQ(Sizes(**mini.Add(std::vector<int>(batch))), sizes);
  }
}

TEST(MiniDataset, WaitsForAllBatchesAndMergesNone) {
  MiniDataset<int> mini(2, 4);
  EXPECT_EQ(*mini.Add({0, 1, 2, 3, 4}), std::nullopt);
  const auto chunks = **mini.Add({5, 6, 7, 8, 9});
  EXPECT_THAT(chunks, ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4), ElementsAre(5, 6, 7, 8), ElementsAre(9)));
}

TEST(MiniDataset, RefusesMoreThanItHolds) {
  MiniDataset<int> mini(0, 4);
  EXPECT_EQ(mini.Add({1}).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tdock::data
