#include "trainer/run_log/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/base/testing/growth.h"
#include "nlohmann/json.hpp"
#include "trainer/run_log/report_template.h"

namespace tdock::trainer {
namespace {

using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::ordered_json;

// The data that a page carries, as a browser would find it.
Json DataInPage(const std::string& page) {
  const std::string open = "<script id=\"run\" type=\"application/json\">";
  const size_t begin = page.find(open) + open.size();
  return Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

Json DataOf(const ReportSource& source) { return DataInPage(RenderReport({}, source)); }

TEST(Report, ThePartsOfPagesAreEmbeddedByteForByte) {
  const std::pair<const char*, absl::string_view> parts[] = {
      {"report.html", kReportTemplate}, {"comparison.html", kComparisonTemplate},
      {"page_style.css", kPageStyle},   {"charts.js", kChartsScript},
      {"timeline.js", kTimelineScript}, {"run_view.js", kRunViewScript},
      {"live.html", kLiveTemplate},     {"live.js", kLiveScript},
      {"overview.js", kOverviewScript}};
  for (const auto& [name, text] : parts) {
    const auto file = Env::Real().ReadFile(absl::StrCat("src/trainer/run_log/", name));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(text, *file) << name;
  }
}

TEST(Report, ThePageLoadsNothing) {
  const std::string page = RenderReport({}, {});
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  for (const char* outside : {"https://", "src=\"", "@import", "url(", "fetch("})
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  // The name of the SVG elements' language is the only address, and is never loaded.
  EXPECT_EQ(page.find("http://", page.find("http://www.w3.org/2000/svg") + 1), std::string::npos);
}

TEST(Report, AnEmptyRunHasAPage) {
  const Json data = DataOf(ReportSource{});
  EXPECT_TRUE(data["phases"].empty());
  EXPECT_TRUE(data["samples"].empty());
  EXPECT_TRUE(data["timeline"]["spans"].empty());
}

TEST(Report, CollectsSeriesByPhaseAndName) {
  const Json data = DataOf({.metrics_jsonl = R"({"phase":"sft","step":1,"timing_s/step":0.5}
{"phase":"grpo","step":0,"val":0.25}
{"phase":"grpo","step":1,"x":1,"y":3}
{"phase":"grpo","step":2,"x":null,"y":1}
{"phase":"grpo","step":3,"x":2,"y":2,"val":0.75}
)"});
  ASSERT_EQ(data["phases"].size(), 2u);
  EXPECT_EQ(data["phases"][0]["name"], "sft");
  const Json expected = Json::parse(R"({"name":"grpo","first_step":0,"last_step":3,"steps":[[0,3],[1,2,3]],"series":[
    {"tag":"val","x":0,"y":[0.25,0.75],"last":[3,0.75],"min":[0,0.25],"max":[3,0.75]},
    {"tag":"x","x":1,"y":[1.0,null,2.0],"last":[3,2.0],"min":[1,1.0],"max":[3,2.0]},
    {"tag":"y","x":1,"y":[3.0,1.0,2.0],"last":[3,2.0],"min":[2,1.0],"max":[1,3.0]}]})");
  EXPECT_EQ(data["phases"][1], expected) << data["phases"][1].dump(1);
}

TEST(Report, ShowsALongSeriesAsMeansWithTheirRange) {
  std::string lines;
  for (int step = 1; step <= 10'000; ++step) {
    absl::StrAppend(&lines, "{\"phase\":\"p\",\"step\":", step, ",\"x\":", step == 5005 ? 1000 : step % 2,
                    step % 20 == 0 ? ",\"sparse\":1" : "", "}\n");
  }
  const Json phase = DataOf({.metrics_jsonl = lines})["phases"][0];
  const Json& x = phase["series"][0];
  EXPECT_EQ(x["y"].size(), 1000u);
  EXPECT_EQ(phase["steps"][0][0], 10);
  EXPECT_EQ(phase["steps"][0][999], 10'000);
  EXPECT_EQ(x["y"][0], 0.5);
  EXPECT_EQ(x["low"][0], 0.0);
  EXPECT_EQ(x["high"][0], 1.0);
  EXPECT_EQ(x["high"][500], 1000.0) << "a spike is not lost";
  EXPECT_EQ(x["max"], Json::parse("[5005,1000.0]"));
  const Json& sparse = phase["series"][1];
  EXPECT_EQ(sparse["y"].size(), 500u);
  EXPECT_FALSE(sparse.contains("low"));
}

TEST(Report, SkipsATornLastLineAndCountsWhatItCannotRead) {
  const Json data =
      DataOf({.metrics_jsonl = "{\"phase\":\"p\",\"step\":1,\"x\":1}\nnonsense\n[1]\n{\"phase\":\"p\",\"st",
              .samples_jsonl = "{\"prompt\":\"no step\"}\n"});
  EXPECT_EQ(data["phases"].size(), 1u);
  EXPECT_EQ(data["unreadable"], 3);
}

TEST(Report, HostileTextStaysData) {
  const std::string hostile = "</script><script>alert(1)</script><!-- {{run}} \xff \xe2\x80\xa8";
  Json sample = {{"phase", "p"}, {"step", 1}, {"prompt", "a"}, {"response", hostile.substr(0, 43)}, {"truth", 7}};
  const std::string lines = sample.dump() + "\n";
  const std::string page = RenderReport({.title = hostile, .facts = {{hostile, hostile}}, .problem = hostile},
                                        {.config_yaml = hostile, .samples_jsonl = lines});
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script>")));
  EXPECT_THAT(page, Not(HasSubstr("<!--")));
  const Json data = DataInPage(page);
  const std::string shown = "</script><script>alert(1)</script><!-- {{run}} \xef\xbf\xbd \xe2\x80\xa8";
  EXPECT_EQ(data["title"], shown);
  EXPECT_EQ(data["config"], shown);
  EXPECT_EQ(data["samples"][0][0]["response"], hostile.substr(0, 43));
  EXPECT_EQ(data["samples"][0][0]["truth"], "");
  EXPECT_TRUE(data["samples"][0][0]["correct"].is_null());
}

TEST(Report, ShowsAFewAnswersOfAFewSteps) {
  std::string lines;
  for (int step = 0; step <= 200; step += 10) {
    for (int i = 0; i < 30; ++i) {
      absl::StrAppend(&lines, "{\"phase\":\"p\",\"step\":", step, ",\"prompt\":\"", i, "\",\"correct\":true}\n");
    }
  }
  const Json samples = DataOf({.samples_jsonl = lines})["samples"];
  ASSERT_EQ(samples.size(), 6u);
  EXPECT_EQ(samples.front()[0]["step"], 0);
  EXPECT_EQ(samples.back()[0]["step"], 200);
  for (const Json& group : samples) EXPECT_EQ(group.size(), 12u);
}

std::string SpanLine(int64_t step, const std::string& stage, const std::string& what, double begin, double end,
                     int64_t rows = 0) {
  return Json{{"phase", "grpo"}, {"step", step}, {"stage", stage}, {"what", what},
              {"begin", begin},  {"end", end},   {"rows", rows}}
             .dump() +
         "\n";
}

TEST(Report, TheTimelineHasALaneForEachStageAndTheEndsOfSteps) {
  const Json data =
      DataOf({.timeline_jsonl = SpanLine(1, "rollout", "work", 0, 2, 8) + SpanLine(1, "actor", "wait", 0.5, 1.25) +
                                SpanLine(2, "actor", "work", 2, 3.0004, 4)});
  EXPECT_EQ(data["timeline"], Json::parse(R"({"lanes":["rollout","actor"],"steps":[[1,2.0],[2,3.0]],
                            "spans":[[0,0,1,0.0,2.0,8],[1,0,0,0.5,1.25,0],[1,1,1,2.0,3.0,4]],"left_out":false})"))
      << data["timeline"].dump();
}

TEST(Report, ALongTimelineIsShownFromTheFirstWholeStepOfItsLastSpans) {
  std::string lines = SpanLine(0, "validation", "work", 0, 1) + SpanLine(1, "feeder", "work", 0, 1);
  for (int step = 1; step <= 1000; ++step) {
    for (const char* stage : {"rollout", "reward", "actor"}) lines += SpanLine(step, stage, "work", step, step + 1, 2);
  }
  const Json timeline = DataOf({.timeline_jsonl = lines})["timeline"];
  EXPECT_EQ(timeline["left_out"], true);
  EXPECT_EQ(timeline["spans"].size(), 1998u);
  EXPECT_EQ(timeline["steps"].front()[0], 335);
  EXPECT_EQ(timeline["steps"].back(), Json::parse("[1000,1001.0]"));
  EXPECT_EQ(timeline["lanes"], Json::parse(R"(["rollout","reward","actor"])")) << "as the stages first appeared";
}

TEST(Report, SpansThatCannotBeReadAreCounted) {
  const Json data = DataOf({.timeline_jsonl = SpanLine(1, "a", "work", 0, 1, -7) + SpanLine(1, "a", "work", 2, 1) +
                                              "{\"step\":1}\nnonsense\n" + "{\"step\":1,\"stage\":\"a\",\"be"});
  EXPECT_EQ(data["timeline"]["spans"], Json::parse("[[0,0,1,0.0,1.0,0]]"));
  EXPECT_EQ(data["unreadable"], 3);
}

TEST(Report, ShortensLongTextBetweenCharacters) {
  std::string text = "a";
  for (int i = 0; i < 3000; ++i) text += "\xe4\xbd\xa0";
  const Json line = {{"phase", "p"}, {"step", 1}, {"response", text}};
  const std::string shown = DataOf({.samples_jsonl = line.dump() + "\n"})["samples"][0][0]["response"];
  EXPECT_LT(shown.size(), 4010u);
  EXPECT_EQ(shown, text.substr(0, 4000) + " …");
}

TEST(Report, CostsWhatItsLinesCost) {
  ExpectLinear(
      [](int64_t steps) {
        std::string metrics, samples;
        for (int64_t step = 0; step < steps; ++step) {
          absl::StrAppend(&metrics, R"({"phase":"p","step":)", step, R"(,"a":1,"b":2})", "\n");
          absl::StrAppend(&samples, R"({"phase":"p","step":)", step, R"(,"prompt":"q","response":"r"})", "\n");
        }
        ASSERT_FALSE(RenderReport({.title = "t"}, {.metrics_jsonl = metrics, .samples_jsonl = samples}).empty());
      },
      2'000);
}

}  // namespace
}  // namespace tdock::trainer
