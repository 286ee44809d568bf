#include "trainer/run_log/page.h"

#include "absl/strings/str_replace.h"
#include "core/base/json_text.h"
#include "trainer/run_log/report_template.h"

namespace tdock::trainer {

std::string FilledPage(absl::string_view page_template, const LogRecord& data) {
  std::string text = JsonText(data);
  // Inside a script element only "<" can end the element or open a comment; in JSON it stands in strings alone.
  text = absl::StrReplaceAll(text, {{"<", "\\u003c"}});
  return absl::StrReplaceAll(page_template, {{"{{style}}", kPageStyle},
                                             {"{{charts}}", kChartsScript},
                                             {"{{timeline}}", kTimelineScript},
                                             {"{{run_view}}", kRunViewScript},
                                             {"{{run}}", text}});
}

std::string LivePage() {
  return absl::StrReplaceAll(kLiveTemplate, {{"{{style}}", kPageStyle},
                                             {"{{charts}}", kChartsScript},
                                             {"{{timeline}}", kTimelineScript},
                                             {"{{run_view}}", kRunViewScript},
                                             {"{{live}}", kLiveScript},
                                             {"{{overview}}", kOverviewScript}});
}

}  // namespace tdock::trainer
