// `tandem certs`: implements NewCertsCommand (cli/command_line/commands.h). Makes the folders that
// --fleet-tls, --tls-cert and --tls-client-ca name.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/certs/authority.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "common/base/status_macros.h"
#include "common/config/process_main.h"
#include "common/runtime/clock.h"

namespace tandem::cli {
namespace {

// Clocks of other machines may be behind.
constexpr absl::Duration kClockSkew = absl::Hours(1);
constexpr rpc::PeerRole kRoles[] = {rpc::PeerRole::kRouter, rpc::PeerRole::kPrefill,
                                    rpc::PeerRole::kDecode, rpc::PeerRole::kCli};

absl::Status ErrnoStatus(const std::string& path) { return absl::ErrnoToStatus(errno, path); }

// In one step: a process that reads meanwhile gets the old text or the new one.
absl::Status WriteFile(const std::string& path, const std::string& text, mode_t mode) {
  const std::string temporary = absl::StrCat(path, ".new");
  ::unlink(temporary.c_str());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0) return ErrnoStatus(temporary);
  const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       ::fsync(fd) == 0;
  const absl::Status status = written ? absl::OkStatus() : ErrnoStatus(temporary);
  ::close(fd);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  ::unlink(temporary.c_str());
  return status.ok() ? ErrnoStatus(path) : status;
}

absl::Status MakeFolder(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) == 0 || errno == EEXIST) return absl::OkStatus();
  return ErrnoStatus(path);
}

// nullopt: there is no such file.
std::optional<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

// Whether spiffe://FLEET/tandem/ROLE is a URI that names this fleet.
bool IsFleetName(absl::string_view fleet) {
  const auto plain = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_';
  };
  for (const absl::string_view segment : absl::StrSplit(fleet, '/')) {
    if (segment.empty() || !std::all_of(segment.begin(), segment.end(), plain)) return false;
  }
  return true;
}

class CertsCommand final : public Command {
 public:
  CertsCommand()
      : schema_("tandem certs", "Makes and lists certificates for routers, nodes and clients.") {
    schema_.Add("folder", &folder_,
                "Where the authority is (ca.crt, ca.key), and for each role a folder with tls.crt, "
                "tls.key and ca.crt: router, prefill, decode and cli.",
                {.required = true});
    schema_.Add("fleet", &fleet_,
                "With make: the fleet's name in URIs spiffe://FLEET/tandem/ROLE.");
    schema_.Add("names", &names_,
                "With make: DNS names and addresses by which clients reach routers.");
    schema_.Add("days", &days_, "With make: how long the certificates are valid.",
                {.min = 1, .max = 3650, .unit = "days"});
    schema_.AllowPositionals("make | list", 1);
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    std::vector<std::string> words;
    if (auto code = ParseArguments(schema_, args, env, &words)) return *code;
    const std::string verb = words.empty() ? "" : words[0];
    if (verb != "make" && verb != "list") {
      ReportError(schema_, absl::InvalidArgumentError("expected make or list"));
      return config::kExitUsage;
    }
    if (verb == "make" && !IsFleetName(fleet_)) {
      ReportError(schema_, absl::InvalidArgumentError(absl::StrCat(
                               "--fleet '", fleet_,
                               "': expected a name of letters, digits, '.', '-' and '_', or "
                               "several with '/' between them")));
      return config::kExitUsage;
    }
    const absl::Status status = verb == "make" ? Make() : List();
    return status.ok() ? config::kExitOk : ReportError(schema_, status);
  }

 private:
  std::string In(absl::string_view name) const { return absl::StrCat(folder_, "/", name); }

  // The folder's authority, which this makes if there is none.
  absl::StatusOr<Authority> FindOrMakeAuthority(absl::Time now) const {
    const auto certificate = ReadFile(In("ca.crt")), key = ReadFile(In("ca.key"));
    if (certificate.has_value() != key.has_value())
      return absl::InvalidArgumentError(
          absl::StrCat(folder_, ": expected both ca.crt and ca.key, or neither"));
    if (certificate.has_value()) return Authority::Parse({*certificate, *key});
    ASSIGN_OR_RETURN(Authority made, Authority::Create(absl::StrCat(fleet_, " authority"),
                                                       now - kClockSkew, now + kAuthorityTime));
    RETURN_IF_ERROR(WriteFile(In("ca.key"), made.pem().key, 0600));
    RETURN_IF_ERROR(WriteFile(In("ca.crt"), made.pem().certificate, 0644));
    return made;
  }

  absl::Status Make() const {
    const absl::Time now = RealClock().Now();
    RETURN_IF_ERROR(MakeFolder(folder_));
    ASSIGN_OR_RETURN(const Authority authority, FindOrMakeAuthority(now));
    for (const rpc::PeerRole role : kRoles) {
      CertificateSubject subject;
      subject.common_name = absl::StrCat("tandem ", rpc::RoleName(role));
      subject.uris = {rpc::PeerIdentity{fleet_, role}.uri()};
      if (role == rpc::PeerRole::kRouter) subject.names = names_;
      subject.begin = now - kClockSkew;
      subject.end = now + absl::Hours(24) * days_;
      ASSIGN_OR_RETURN(const CertificateAndKey made, authority.Issue(subject));
      const std::string folder = In(rpc::RoleName(role));
      RETURN_IF_ERROR(MakeFolder(folder));
      RETURN_IF_ERROR(WriteFile(folder + "/ca.crt", authority.pem().certificate, 0644));
      RETURN_IF_ERROR(WriteFile(folder + "/tls.key", made.key, 0600));
      RETURN_IF_ERROR(WriteFile(folder + "/tls.crt", made.certificate, 0644));
    }
    return List();
  }

  absl::Status List() const {
    std::string text = absl::StrFormat("%-16s %-20s  %s\n", "FILE", "VALID UNTIL", "NAMES");
    std::vector<std::string> files = {"ca.crt"};
    for (const rpc::PeerRole role : kRoles)
      files.push_back(absl::StrCat(rpc::RoleName(role), "/tls.crt"));
    for (const std::string& file : files) {
      const std::optional<std::string> pem = ReadFile(In(file));
      if (!pem.has_value()) return absl::NotFoundError(absl::StrCat(In(file), ": cannot be read"));
      const absl::StatusOr<CertificateSummary> found = Summarize(*pem);
      if (!found.ok())
        return absl::InvalidArgumentError(absl::StrCat(In(file), ": ", found.status().message()));
      std::vector<std::string> names = found->uris;
      names.insert(names.end(), found->names.begin(), found->names.end());
      if (names.empty()) names = {found->common_name};
      absl::StrAppendFormat(&text, "%-16s %-20s  %s\n", file,
                            absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", found->end, absl::UTCTimeZone()),
                            absl::StrJoin(names, " "));
    }
    std::fputs(text.c_str(), stdout);
    return absl::OkStatus();
  }

  static constexpr absl::Duration kAuthorityTime = absl::Hours(24 * 3650);

  config::Schema schema_;
  std::string folder_;
  std::string fleet_ = "tandem";
  std::vector<std::string> names_ = {"localhost", "127.0.0.1", "::1"};
  int32_t days_ = 90;
};

}  // namespace

std::unique_ptr<Command> NewCertsCommand() { return std::make_unique<CertsCommand>(); }

}  // namespace tandem::cli
