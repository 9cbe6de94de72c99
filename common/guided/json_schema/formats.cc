#include "common/guided/json_schema/formats.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/shown_text.h"

namespace tandem::guided::json_schema {
namespace {

// RFC 3339's full-date, with the days that each month of each year has.
std::string Date() {
  const std::string year = "(?:[1-9]\\d{3}|0[1-9]\\d\\d|00[1-9]\\d|000[1-9])";
  const std::string leap_year =
      "(?:(?:[1-9]\\d|0[1-9])(?:0[48]|[2468][048]|[13579][26])|00(?:0[48]|[2468][048]|[13579][26])"
      "|(?:0[48]|[2468][048]|[13579][26])00)";
  return absl::StrCat("(?:", year,
                      "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]"
                      "\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))|",
                      leap_year, "-02-29)");
}

// RFC 3339's full-time without leap seconds.
std::string Time() {
  return "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]"
         "\\d)";
}

std::string Ipv4() {
  const std::string byte = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
  return absl::StrCat("(?:", byte, "\\.){3}", byte);
}

// RFC 4291's text forms, without the mixed ones.
std::string Ipv6() {
  const std::string group = "[0-9a-fA-F]{1,4}";
  std::vector<std::string> forms = {absl::StrCat("(?:", group, ":){7}", group)};
  for (int before = 0; before <= 7; ++before) {
    const std::string left = before == 0 ? ":" : absl::StrCat("(?:", group, ":){", before, "}");
    const int after = 7 - before;
    forms.push_back(after == 0 ? absl::StrCat(left, ":")
                               : absl::StrCat(left, "(?:(?::", group, "){1,", after, "}|:)"));
  }
  return absl::StrCat("(?:", absl::StrJoin(forms, "|"), ")");
}

std::string Label() { return "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"; }
std::string Hostname() { return absl::StrCat(Label(), "(?:\\.", Label(), ")*"); }

std::string Email() {
  const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
  return absl::StrCat(atom, "(?:\\.", atom, ")*@", Label(), "(?:\\.", Label(), ")*");
}

// RFC 3986's form: a scheme, an authority with a host's name or IPv4 address, a path, a query and a
// fragment. Something follows the scheme.
std::string Uri() {
  const auto characters = [](absl::string_view more) {
    return absl::StrCat("(?:[A-Za-z0-9._~!$&'()*+,;=", more, "-]|%[0-9A-Fa-f]{2})");
  };
  const std::string authority =
      absl::StrCat("(?:", characters(":"), "*@)?", characters(""), "*(?::\\d*)?");
  const std::string segment = characters(":@"), rest = absl::StrCat(characters(":@/?"), "*");
  const std::string segments = absl::StrCat("(?:/", segment, "*)*");
  const std::string path =
      absl::StrCat("(?://", authority, segments, "|/?", segment, "+", segments, "|/)");
  return absl::StrCat("[A-Za-z][A-Za-z0-9+.-]*:(?:", path, "(?:\\?", rest, ")?|\\?", rest, ")(?:#",
                      rest, ")?");
}

// ISO 8601 durations, as RFC 3339's appendix A defines them.
std::string Duration() {
  const std::string time = "T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S)";
  return absl::StrCat("P(?:\\d+W|", time,
                      "|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)(?:", time, ")?)");
}

}  // namespace

absl::StatusOr<std::string> FormatPattern(absl::string_view format) {
  if (format == "date") return Date();
  if (format == "time") return Time();
  if (format == "date-time") return absl::StrCat(Date(), "T", Time());
  if (format == "duration") return Duration();
  if (format == "uuid") {
    return std::string("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}");
  }
  if (format == "email") return Email();
  if (format == "hostname") return Hostname();
  if (format == "ipv4") return Ipv4();
  if (format == "ipv6") return Ipv6();
  if (format == "uri") return Uri();
  return absl::InvalidArgumentError(
      absl::StrCat("format ", ShownInQuotes(format),
                   " is not supported; date, time, date-time, duration, uuid, email, hostname, "
                   "ipv4, ipv6 and uri are"));
}

}  // namespace tandem::guided::json_schema
