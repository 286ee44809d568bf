#include "dock/service/console/page.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "core/base/utf8.h"
#include "dock/service/console/page_template.h"
#include "dock/service/console/text_table.h"

namespace tdock::console {
namespace {

// A name may contain characters that change the direction of text; <bdi> isolates them.
std::string NameHtml(absl::string_view name) { return absl::StrCat("<bdi>", EscapeHtml(name), "</bdi>"); }

struct State {
  const char* name;
  int64_t ConsumerStatus::*rows;
};
// In the reverse order of a row's states, so that done is at the left, as in a progress bar.
constexpr State kStates[] = {{"done", &ConsumerStatus::done},
                             {"leased", &ConsumerStatus::leased},
                             {"ready", &ConsumerStatus::ready},
                             {"waiting", &ConsumerStatus::waiting},
                             {"quarantined", &ConsumerStatus::quarantined}};

std::string Fact(absl::string_view name, absl::string_view value) {
  return absl::StrCat("<div><dt>", EscapeHtml(name), "</dt><dd>", EscapeHtml(value), "</dd></div>");
}

std::string Number(double value) {
  if (value == static_cast<double>(static_cast<int64_t>(value))) return Grouped(static_cast<int64_t>(value));
  return absl::StrFormat("%.3g", value);
}

std::string FactsOf(const PageFacts& facts) {
  std::string html = absl::StrCat("<dl class=facts>", Fact("up for", Roughly(facts.process.uptime)),
                                  Fact("process memory", Mebibytes(facts.process.resident_bytes)));
  for (const Reading& reading : facts.readings) {
    std::string what = reading.help;
    if (!what.empty() && what.back() == '.') what.pop_back();
    for (const auto& [name, value] : reading.labels) absl::StrAppend(&what, ", ", name, " ", value);
    absl::StrAppend(&html, Fact(absl::AsciiStrToLower(what), Number(reading.value)));
  }
  return absl::StrCat(html, "</dl>");
}

std::string FactsOf(const PartitionStatus& status) {
  std::string html =
      absl::StrCat("<dl class=facts>", Fact("rows", Grouped(status.rows)), Fact("groups", Grouped(status.groups)));
  if (status.incomplete_groups > 0) absl::StrAppend(&html, Fact("incomplete", Grouped(status.incomplete_groups)));
  absl::StrAppend(&html, Fact("held", Mebibytes(status.held_bytes)));
  if (status.weights_version != kNoWeightsVersion) {
    absl::StrAppend(&html, Fact("weights", Grouped(status.weights_version)));
  }
  if (!status.retain_for.empty())
    absl::StrAppend(&html, Fact("rows retained for", absl::StrJoin(status.retain_for, ", ")));
  return absl::StrCat(html, "</dl>");
}

std::string Bar(const ConsumerStatus& status) {
  int64_t all = 0;
  for (const State& state : kStates) all += status.*state.rows;
  std::string parts, words;
  for (const State& state : kStates) {
    const int64_t rows = status.*state.rows;
    if (rows == 0) continue;
    absl::StrAppend(&parts, "<i class=", state.name, " style=\"flex-grow:", rows, "\"></i>");
    absl::StrAppend(&words, words.empty() ? "" : ", ", Grouped(rows), " ", state.name);
  }
  if (all == 0) words = "no rows";
  return absl::StrCat("<div class=bar role=img title=\"", words, "\" aria-label=\"", words, "\">", parts, "</div>");
}

// A cell of a table; `kind` is an attribute for figures above 0.
std::string Cell(int64_t count, absl::string_view heading = "", absl::string_view kind = "") {
  const std::string of = heading.empty() ? "" : absl::StrCat(" data-of=", heading);
  return absl::StrCat("<td", of, count == 0 ? " class=zero" : kind, ">", Grouped(count), "</td>");
}

constexpr struct {
  const char* heading;
  int64_t ConsumerStatus::*count;
  const char* kind;
} kConsumerColumns[] = {{"takeable", &ConsumerStatus::takeable, ""},
                        {"waiting", &ConsumerStatus::waiting, ""},
                        {"ready", &ConsumerStatus::ready, ""},
                        {"leased", &ConsumerStatus::leased, ""},
                        {"quarantined", &ConsumerStatus::quarantined, " class=bad"},
                        {"done", &ConsumerStatus::done, ""},
                        {"completed", &ConsumerStatus::completed, ""},
                        {"expired", &ConsumerStatus::expired, " class=warn"}};

std::string ConsumersOf(const PartitionStatus& status) {
  if (status.consumers.empty()) return "<p class=note>No consumer is registered.</p>";
  std::string html = "<div class=table><table class=consumers><thead><tr><th>consumer</th><th>rows by state</th>";
  for (const auto& figure : kConsumerColumns) absl::StrAppend(&html, "<th class=num>", figure.heading, "</th>");
  absl::StrAppend(&html, "</tr></thead><tbody>");
  for (const auto& [name, it] : status.consumers) {
    absl::StrAppend(&html, "<tr><th>", NameHtml(name), "</th><td class=wide>", Bar(it), "</td>");
    // On a narrow screen, each figure shows its heading beside it.
    for (const auto& [heading, count, kind] : kConsumerColumns) absl::StrAppend(&html, Cell(it.*count, heading, kind));
    absl::StrAppend(&html, "</tr>");
  }
  return absl::StrCat(html, "</tbody></table></div>");
}

std::string ColumnsOf(const PartitionStatus& status) {
  if (status.columns.empty()) return "";
  std::string html =
      "<div class=table><table class=columns><thead><tr><th>column</th><th>type</th><th>ready cells</th>"
      "<th class=num></th></tr></thead><tbody>";
  for (const ColumnStatus& column : status.columns) {
    const int64_t empty = std::max<int64_t>(status.rows - column.ready_cells, 0);
    absl::StrAppend(&html, "<tr><th>", NameHtml(column.name), "</th><td class=type>",
                    column.typed ? EscapeHtml(ToString(column.type)) : "not put yet", "</td><td class=wide>",
                    "<div class=bar><i class=cells style=\"flex-grow:", column.ready_cells,
                    "\"></i><i class=rest style=\"flex-grow:", empty, "\"></i></div></td>", Cell(column.ready_cells),
                    "</tr>");
  }
  return absl::StrCat(html, "</tbody></table></div>");
}

std::string Heading(const NamedPartition& partition, bool link) {
  const std::string name = NameHtml(partition.name);
  return absl::StrCat(
      "<h2>",
      link ? absl::StrCat("<a href=\"/partition?name=", EscapeQuery(partition.name), "\">", name, "</a>") : name,
      partition.status.sealed ? " <small class=tag>sealed</small>" : "", "</h2>");
}

std::string Legend() {
  std::string html = "<ul class=legend>";
  for (const State& state : kStates) {
    absl::StrAppend(&html, "<li><i class=", state.name, "></i>", state.name, "</li>");
  }
  return absl::StrCat(html, "</ul>");
}

std::string Page(absl::string_view title, absl::string_view main, const PageFacts& facts) {
  std::string all;
  for (const std::string& text : facts.stalls) absl::StrAppend(&all, "<p class=bad>", EscapeHtml(text), "</p>");
  absl::StrAppend(&all, main);
  return absl::StrReplaceAll(kPageTemplate,
                             {{"{{title}}", EscapeHtml(title)}, {"{{nonce}}", facts.nonce}, {"{{main}}", all}});
}

}  // namespace

std::string EscapeHtml(absl::string_view text) {
  return absl::StrReplaceAll(EscapeUnprintable(text),
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::string EscapeQuery(absl::string_view text) {
  std::string escaped;
  for (const char byte : text) {
    const bool plain =
        absl::ascii_isalnum(static_cast<unsigned char>(byte)) || byte == '-' || byte == '_' || byte == '.';
    absl::StrAppend(&escaped,
                    plain ? std::string(1, byte) : absl::StrFormat("%%%02X", static_cast<unsigned char>(byte)));
  }
  return escaped;
}

std::string OverviewPage(const std::vector<NamedPartition>& partitions, const PageFacts& facts) {
  std::string main = absl::StrCat("<header><h1>Transfer Dock</h1>", FactsOf(facts), "</header>");
  if (partitions.empty()) absl::StrAppend(&main, "<p class=empty>There is no partition yet.</p>");
  if (!partitions.empty()) absl::StrAppend(&main, Legend());
  for (const NamedPartition& partition : partitions) {
    absl::StrAppend(&main, "<section>", Heading(partition, true), FactsOf(partition.status),
                    ConsumersOf(partition.status), ColumnsOf(partition.status), "</section>");
  }
  return Page("Transfer Dock", main, facts);
}

std::string StalledPage(const PageFacts& facts) {
  return Page("Transfer Dock", absl::StrCat("<header><h1>Transfer Dock</h1>", FactsOf(facts), "</header>"), facts);
}

std::string PartitionPage(const NamedPartition& partition, const std::vector<std::string>& explanations,
                          const PageFacts& facts) {
  std::string main =
      absl::StrCat("<header><p class=back><a href=\"/\">All partitions</a></p>", FactsOf(facts), "</header>", Legend(),
                   "<section>", Heading(partition, false), FactsOf(partition.status), ConsumersOf(partition.status));
  if (!explanations.empty()) absl::StrAppend(&main, "<h3>Why each consumer cannot take more</h3><dl class=why>");
  for (size_t i = 0; i < std::min(explanations.size(), partition.status.consumers.size()); ++i) {
    absl::StrAppend(&main, "<dt>", NameHtml(partition.status.consumers[i].name), "</dt>");
    for (const std::string& sentence : Sentences(explanations[i])) {
      absl::StrAppend(&main, "<dd>", EscapeHtml(sentence), "</dd>");
    }
  }
  if (!explanations.empty()) absl::StrAppend(&main, "</dl>");
  absl::StrAppend(&main, partition.status.columns.empty() ? "" : "<h3>Columns</h3>", ColumnsOf(partition.status),
                  "</section>");
  return Page(absl::StrCat(partition.name, " · Transfer Dock"), main, facts);
}

}  // namespace tdock::console
