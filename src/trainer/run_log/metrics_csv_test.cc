#include "trainer/run_log/metrics_csv.h"

#include <gtest/gtest.h>

namespace tdock::trainer {
namespace {

TEST(MetricsCsv, HasAColumnForEveryMetricOfAnyStep) {
  EXPECT_EQ(MetricsCsv(R"({"phase":"sft","step":0,"val/loss":2.5}
{"phase":"sft","step":1,"train/loss":0.1,"train/lr":4e-05}
{"phase":"grpo","step":2,"actor/entropy":null,"val/loss":2,"note":"text"}
)"),
            "step,phase,actor/entropy,train/loss,train/lr,val/loss\r\n"
            "0,sft,,,,2.5\r\n"
            "1,sft,,0.1,4e-05,\r\n"
            "2,grpo,,,,2\r\n");
}

TEST(MetricsCsv, QuotesWhatSeparatesFields) {
  EXPECT_EQ(MetricsCsv("{\"step\":1,\"phase\":\"a\\r\\nb\",\"x,\\\"y\\\"\":1}\n"),
            "step,phase,\"x,\"\"y\"\"\"\r\n"
            "1,\"a\r\nb\",1\r\n");
}

TEST(MetricsCsv, LeavesOutWhatIsNoRecord) {
  EXPECT_EQ(MetricsCsv("nonsense\n{\"step\":1,\"phase\":\"p\"}\n{\"step\":2,"), "step,phase\r\n1,p\r\n");
  EXPECT_EQ(MetricsCsv(""), "step,phase\r\n");
}

}  // namespace
}  // namespace tdock::trainer
