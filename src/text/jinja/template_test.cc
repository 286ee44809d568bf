#include "text/jinja/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/base/testing/fails.h"

namespace tdock::jinja {
namespace {

using testing::ElementsAre;
using testing::StartsWith;

// Data: the string "Ann" of origin 7, a list of three marked messages, whose contents have their number as origin.
Template::Inputs SomeInputs() {
  Value::Items messages;
  for (int32_t i = 0; i < 3; ++i) {
    messages.push_back(Value::Dict({{Value::String("role"), Value::String(i % 2 == 0 ? "user" : "assistant")},
                                    {Value::String("content"), Value::String(absl::StrCat(" text ", i), i)}},
                                   /*mark=*/i));
  }
  return {{"name", Value::String("Ann", 7)}, {"messages", Value::List(std::move(messages))}};
}

absl::StatusOr<Rendered> RenderWith(absl::string_view source, const Limits& limits = {}) {
  const auto parsed = Template::Parse(source, limits);
  if (!parsed.ok()) return parsed.status();
  return parsed->Render(SomeInputs());
}

// The text with the parts that are data between brackets.
std::string DataOf(absl::string_view source) {
  const auto rendered = RenderWith(source);
  if (!rendered.ok()) return std::string(rendered.status().message());
  std::string shown;
  size_t begin = 0;
  for (const Run& run : rendered->origins) {
    const std::string part = rendered->text.substr(begin, run.end - begin);
    absl::StrAppend(&shown, run.value == kOfTemplate ? part : absl::StrCat("<", part, ">"));
    begin = run.end;
  }
  return shown;
}

TEST(Template, KnowsWhichCharactersAreData) {
  const std::vector<std::pair<absl::string_view, absl::string_view>> cases = {
      {"Hi {{ name }}!", "Hi <Ann>!"},
      {"{{ 'x' + name ~ 1 }}", "x<Ann>1"},
      {"{{ name.upper()[1:] ~ name|lower }}", "<NNann>"},
      {"{{ name|replace('n', '-') }}", "<A>--"},
      {"{{ 'a-b'|replace('-', name) }}", "a<Ann>b"},
      {"{{ [name, 'x']|join(', ') }}", "<Ann>, x"},
      {"{{ {'k': name}|tojson }}", "{\"k\": \"<Ann>\"}"},
      {"{{ [name] }}", "['<Ann>']"},
      {"{{ '%s|{}'|format(name) }}", "<Ann>|{}"},
      {"{{ '{:>5}'.format(name) }}", "  <Ann>"},
      {"{{ name.center(5, '*') }}", "*<Ann>*"},
      {"{% macro m(x) %}({{ x }}){% endmacro %}{{ m(name) }}", "(<Ann>)"},
      {"{% set x %}a{{ name }}{% endset %}{{ x|trim('a') }}", "<Ann>"},
      {"{% filter upper %}a{{ name }}{% endfilter %}", "A<ANN>"},
      {"{{ (name ~ '\nb')|indent(2) }}", "<Ann>\n  b"},
      {"{{ name.split('n')|join('+') }}", "<A>++"},
      {"{{ (name ~ 'x')|sort|join }}", "<Ann>x"},
  };
  for (const auto& [source, expected] : cases) EXPECT_EQ(DataOf(source), expected) << source;
}

TEST(Template, GivesWhatALoopPutsOutTheMarkOfItsItem) {
  const auto rendered =
      RenderWith("a{% for m in messages[1:] %}{{ m.role }}{% for c in 'xy' %}{{ c }}{% endfor %}{% endfor %}b");
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_EQ(rendered->text, "aassistantxyuserxyb");
  EXPECT_THAT(rendered->marks,
              ElementsAre(jinja::Run{1, -1}, jinja::Run{12, 1}, jinja::Run{18, 2}, jinja::Run{19, -1}));
}

TEST(Template, KeepsMarksThroughMacrosAndCollectedBlocks) {
  const auto rendered = RenderWith(
      "{% macro all() %}{% for m in messages %}{{ loop.index }}{% endfor %}{% endmacro %}{% set x %}{{ all() }}{% "
      "endset %}<{{ x }}>");
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_THAT(rendered->marks,
              ElementsAre(jinja::Run{1, -1}, jinja::Run{2, 0}, jinja::Run{3, 1}, jinja::Run{4, 2}, jinja::Run{5, -1}));
}

TEST(Template, SaysWhatGenerationBlocksPutOut) {
  const auto parsed = Template::Parse(
      "{% for m in messages %}<{% generation %}{{ m.content|trim }}{% endgeneration %}>{% generation %}{% "
      "endgeneration %}{% endfor %}");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(parsed->marks_generation());
  const auto rendered = parsed->Render(SomeInputs());
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_EQ(rendered->text, "<text 0><text 1><text 2>");
  EXPECT_THAT(rendered->generations, ElementsAre(Range{1, 7}, Range{9, 15}, Range{17, 23}));
}

TEST(Template, KnowsWhichNamesItReads) {
  const auto parsed = Template::Parse(
      "{% set x = 1 %}{{ x }}{% if tools %}{% for t in tools %}{{ strftime_now('%Y') }}{% endfor %}{% endif %}");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(parsed->uses("tools"));
  EXPECT_TRUE(parsed->uses("strftime_now"));
  EXPECT_FALSE(parsed->uses("x"));
  EXPECT_FALSE(parsed->uses("t"));
  EXPECT_FALSE(parsed->marks_generation());
}

TEST(Template, ShowsTheTimeThatItIsGiven) {
  const auto parsed = Template::Parse("{{ strftime_now('%d %b %Y %H:%M|%-d') }}");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto rendered = parsed->Render({}, {.now = absl::FromUnixSeconds(1'700'000'000)});
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_EQ(rendered->text, "14 Nov 2023 22:13|14");
}

TEST(Template, RaisesItsOwnMessageAsItIs) {
  const auto rendered = RenderWith("\n{{ raise_exception('No ' ~ name) }}");
  EXPECT_EQ(rendered.status(), absl::InvalidArgumentError("No Ann"));
}

TEST(Template, NamesTheLineOfAnError) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument, kUnsupported = absl::StatusCode::kUnimplemented;
  const struct {
    const char* source;
    absl::StatusCode code;
    std::string line;
    std::vector<std::string> names;
  } cases[] = {
      {"a\n{{ nope.x }}", kInvalid, "line 2: ", {"'nope'"}},
      {"\n\n{% for %}", kInvalid, "line 3: ", {}},
      {"{{ name|nosuch }}", kInvalid, "line 1: ", {"\"nosuch\""}},
      {"{% include 'x' %}", kUnsupported, "line 1: ", {"{% include %}"}},
      {"{{ [].append(1) }}", kInvalid, "line 1: ", {"\"append\"", "type list"}},
      {"{{ name.__class__.__mro__ }}", kInvalid, "line 1: ", {"\"__class__\""}},
      {"{{ 1 + 'a' }}", kInvalid, "line 1: ", {"'+'", "int and str"}},
      {"{{ [1]|random }}", kUnsupported, "line 1: ", {"filter random"}},
  };
  for (const auto& [source, code, line, names] : cases) {
    const absl::Status status = RenderWith(source).status();
    EXPECT_THAT(status, Fails(code, names)) << source;
    EXPECT_THAT(std::string(status.message()), StartsWith(line)) << source;
  }
}

TEST(Template, EndsWhatTakesTooMuch) {
  const std::string doubling =
      "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}";
  const std::string shared =
      "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
  const std::vector<std::string> cases = {
      "{{ 'a' * 10**12 }}",
      "{{ [0] * 10**12 }}",
      "{{ 'a'|center(10**12) }}",
      "{{ 'a\nb'|indent(10**12) }}",
      "{{ '{:>999999999999}'.format('a') }}",
      "{{ '%999999999999d' % 1 }}",
      "{{ [1]|tojson(indent=10**12) }}",
      "{{ 'a'.zfill(10**12) ~ 'b'.ljust(10**12) }}",
      "{{ [1]|batch(10**12, 'x')|list }}",
      "{{ [1]|slice(10**12)|list }}",
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      doubling,
      shared + "{{ ns.x }}",
      shared + "{{ ns.x|tojson }}",
      shared + "{% set a = ns.x %}" + shared + "{{ a == ns.x }}",
      "{% set ns = namespace(x=[]) %}{% for i in range(900) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{% set ns = namespace(g=[1]) %}{% for i in range(9000) %}{% set ns.g = ns.g|map('string') %}{% endfor %}{{ "
      "ns.g|list }}",
      "{% for a in range(99999) %}{% for b in range(999) %}{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' "
      "}}{% endfor %}{% endfor %}",
      "{% set x = ('ab' * 100000).replace('a', 'c' * 100000) %}",
      "{% set x = ''.join(('a' * 3000000)|list) %}",
  };
  for (const std::string& source : cases) {
    EXPECT_EQ(RenderWith(source, {.steps = 1'000'000}).status().code(), absl::StatusCode::kResourceExhausted)
        << source << "\n"
        << RenderWith(source, {.steps = 1'000'000}).status();
  }
}

TEST(Template, EndsWithTheErrorOfItsStopCheck) {
  const auto parsed = Template::Parse("{% for i in range(100000) %}{{ i }}{% endfor %}");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  int64_t polls = 0;
  EXPECT_TRUE(parsed->Render({}, {.stop = [&polls] { return ++polls, absl::OkStatus(); }}).ok());
  const int64_t all = polls;
  EXPECT_GE(all, 10);
  for (const int64_t most : {int64_t{0}, int64_t{1}, all - 1}) {
    polls = 0;
    const StopCheck stop = [&polls, most] {
      return ++polls > most ? absl::CancelledError("enough") : absl::OkStatus();
    };
    EXPECT_EQ(parsed->Render({}, {.stop = stop}).status(), absl::CancelledError("enough"));
    EXPECT_EQ(polls, most + 1);
  }
}

TEST(Template, PutsOutNoMoreThanItMay) {
  const auto parsed = Template::Parse("{% for i in range(20) %}a{% endfor %}");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->Render({}, {.output_bytes = 20})->text, std::string(20, 'a'));
  EXPECT_THAT(parsed->Render({}, {.output_bytes = 19}).status(),
              Fails(absl::StatusCode::kResourceExhausted, {"19 bytes", "output"}));
}

TEST(Template, RefusesSourcesThatNestTooDeep) {
  std::string nested_if, sum = "{{ 1";
  for (int i = 0; i < 5000; ++i) nested_if += "{% if 1 %}", sum += " + 1";
  const std::vector<std::string> cases = {
      nested_if,
      sum + " }}",
      "{{ " + std::string(5000, '(') + "1",
      "{{ " + std::string(5000, '[') + "1",
      "{{ " + std::string(5000, '-') + "1 }}",
      "{{ 1" + absl::StrJoin(std::vector<std::string>(5000, "|abs"), "") + " }}",
      "{{ a" + absl::StrJoin(std::vector<std::string>(5000, ".b"), "") + " }}",
      "{{ " + absl::StrJoin(std::vector<std::string>(5000, "not"), " ") + " 1 }}",
      "{{ 1" + absl::StrJoin(std::vector<std::string>(5000, " if 1 else 2"), "") + " }}"};
  for (const std::string& source : cases) EXPECT_FALSE(Template::Parse(source).ok()) << source.substr(0, 30);
  EXPECT_FALSE(Template::Parse("aaaa", {.source_bytes = 3}).ok());
}

TEST(Template, RefusesTextThatIsNotUtf8) {
  EXPECT_THAT(Template::Parse("a\n\xFF").status(), Fails(absl::StatusCode::kInvalidArgument, {"line 2: ", "UTF-8"}));
  EXPECT_FALSE(FromJson(nlohmann::ordered_json("\xFF"), 0).ok());
}

TEST(Value, ReadsIntegersOfJsonExactly) {
  const auto value = FromJson(nlohmann::ordered_json::parse("[18446744073709551615, -9223372036854775808, 1.0]"), 0);
  ASSERT_TRUE(value.ok()) << value.status();
  const auto rendered = Template::Parse("{{ v }}")->Render({{"v", *value}});
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_EQ(rendered->text, "[18446744073709551615, -9223372036854775808, 1.0]");
}

TEST(Value, OfEqualKeysKeepsTheFirstPlaceAndTheLastValue) {
  Value::Pairs pairs;
  for (int64_t i = 0; i < 40; ++i) pairs.emplace_back(Value::Int(i % 20), Value::Int(i));
  const Value dict = Value::Dict(std::move(pairs));
  const auto rendered =
      Template::Parse("{{ v|length }} {{ v[3] }} {{ v[3.0] }} {{ v[20] is defined }}")->Render({{"v", dict}});
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_EQ(rendered->text, "20 23 23 False");
}

TEST(Template, WhatTakesLongCountsAsSteps) {
  const auto code = [](const char* hostile, int64_t steps = Limits().steps) {
    return Template::Parse(hostile, {.steps = steps})->Render({}).status().code();
  };
  EXPECT_EQ(code("{% set ns = namespace(t=(1,)) %}{% for i in range(50) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}"
                 "{{ {ns.t: 1} }}"),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code("{% set a = 'a' * 4000000 %}{% set b = 'a' * 3999999 ~ 'a' %}{% for i in range(1000) %}"
                 "{% if a != b %}x{% endif %}{% endfor %}"),
            absl::StatusCode::kResourceExhausted);
  const std::string loop = "{% set a = 'a' * 4000000 %}{% set d = {'k': 1} %}{% for i in range(100000) %}{% if ";
  for (const char* test : {"a|length", "a.removeprefix('a')", "a in d", "d.get(a)", "d[a] is defined", "a.ljust(1)"}) {
    EXPECT_EQ(code((loop + test + " %}{% endif %}{% endfor %}").c_str(), 1'000'000),
              absl::StatusCode::kResourceExhausted)
        << test;
  }
  EXPECT_EQ(code("{% set p = ',' * 100000 %}{% for i in range(1000) %}{% if [1]|sort(attribute=p) %}{% endif %}"
                 "{% endfor %}"),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code("{% set d = dict(range(20000)|map('string')|batch(2)) %}{% for i in range(10000) %}"
                 "{% set ns = namespace(d) %}{% endfor %}"),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code("{{ ('a' * 4000000).rfind('b' ~ 'a' * 2000000) }}"), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code("{{ ('a' * 4000000) | trim('b' * 2000000 ~ 'a') | length }}"), absl::StatusCode::kResourceExhausted);
  // The other searches take a time that grows with the lengths alone.
  EXPECT_EQ(
      Template::Parse("{{ ('a' * 4000000).find('a' * 2000000 ~ 'b') }} {{ ('a' * 2000000 ~ 'b') in 'a' * 4000000 }}")
          ->Render({})
          ->text,
      "-1 False");
}

}  // namespace
}  // namespace tdock::jinja
