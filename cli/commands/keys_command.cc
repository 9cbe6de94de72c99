// `tandem keys`: implements NewKeysCommand (cli/command_line/commands.h). Edits the file that
// `--api-keys` names; running routers read it again within seconds.
#include <fcntl.h>
#include <openssl/rand.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/command_line/commands.h"
#include "cli/command_line/parse.h"
#include "cli/files/named_file.h"
#include "common/base/status_macros.h"
#include "common/config/process_main.h"
#include "router/front_end/api_keys.h"
#include "router/front_end/keys_file.h"

namespace tandem::cli {
namespace {

constexpr size_t kKeyBytes = 32;  // random ones in a new key
// How much of a hash `list` shows, and the least that `revoke` takes.
constexpr size_t kHashPrefix = 12;

absl::Status ErrnoStatus(const std::string& path, absl::string_view what) {
  return absl::UnavailableError(
      absl::StrCat("--file ", path, ": ", what, ": ", std::strerror(errno)));
}

absl::StatusOr<std::string> NewKey() {
  unsigned char bytes[kKeyBytes];
  if (RAND_bytes(bytes, sizeof(bytes)) != 1)
    return absl::UnavailableError("the system gave no random bytes for a key");
  std::string text;
  absl::WebSafeBase64Escape({reinterpret_cast<const char*>(bytes), sizeof(bytes)}, &text);
  return absl::StrCat("sk-", text);
}

// Reads the file, and writes its new text in one step: a router that reads meanwhile gets either
// version whole. One editor at a time: others wait. The new file has the old one's owner, group and
// mode: a router that runs as another user must be able to read it, or it keeps the earlier keys.
class LockedKeysFile {
 public:
  // `make`: makes a file that is not there, readable by its owner alone.
  static absl::StatusOr<LockedKeysFile> Open(const std::string& path, bool make) {
    while (true) {
      const int fd =
          open(path.c_str(), make ? O_RDONLY | O_CREAT | O_CLOEXEC : O_RDONLY | O_CLOEXEC, 0600);
      if (fd < 0) return ErrnoStatus(path, "cannot be opened");
      LockedKeysFile file(BehindLinks(path), fd);
      if (flock(fd, LOCK_EX) != 0) return ErrnoStatus(path, "cannot be locked");
      // Another editor may have put a new file in this one's place while we waited.
      struct stat& mine = file.stat_;
      struct stat named = {};
      if (fstat(fd, &mine) != 0) return ErrnoStatus(path, "cannot be looked at");
      const bool is_named = lstat(file.path_.c_str(), &named) == 0;
      if (!S_ISREG(mine.st_mode) || (is_named && S_ISLNK(named.st_mode))) {
        return absl::InvalidArgumentError(
            absl::StrCat("--file ", path, ": expected a regular file"));
      }
      if (is_named && mine.st_dev == named.st_dev && mine.st_ino == named.st_ino) {
        return file;
      }
    }
  }
  LockedKeysFile(LockedKeysFile&& other) noexcept
      : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), stat_(other.stat_) {}
  ~LockedKeysFile() {
    if (fd_ >= 0) close(fd_);
  }

  std::string Read() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  absl::Status Replace(const std::string& text) const {
    const std::string temporary = absl::StrCat(path_, ".new");
    unlink(temporary.c_str());  // of an editor that was ended
    const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return ErrnoStatus(temporary, "cannot be written");
    const absl::Status status = Write(fd, temporary, text);
    close(fd);
    if (status.ok() && rename(temporary.c_str(), path_.c_str()) == 0) return absl::OkStatus();
    unlink(temporary.c_str());
    return status.ok() ? ErrnoStatus(path_, "cannot be replaced") : status;
  }

 private:
  LockedKeysFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  absl::Status Write(int fd, const std::string& temporary, const std::string& text) const {
    struct stat made = {};
    if (fstat(fd, &made) != 0) return ErrnoStatus(temporary, "cannot be looked at");
    const bool owned = made.st_uid == stat_.st_uid && made.st_gid == stat_.st_gid;
    if (!owned && fchown(fd, stat_.st_uid, stat_.st_gid) != 0) {
      return ErrnoStatus(path_, absl::StrCat("cannot be replaced by a file of its user ",
                                             stat_.st_uid, " and group ", stat_.st_gid));
    }
    // Not by open, which the umask narrows.
    if (fchmod(fd, stat_.st_mode & 0777) != 0) return ErrnoStatus(temporary, "cannot get its mode");
    if (write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size()) || fsync(fd) != 0)
      return ErrnoStatus(temporary, "cannot be written");
    return absl::OkStatus();
  }

  std::string path_;
  int fd_;
  struct stat stat_ = {};
};

std::string SettingsOf(const router::TenantLimits& limits) {
  std::vector<std::string> words;
  const auto add = [&words](const char* name, int64_t value) {
    if (value > 0) words.push_back(absl::StrCat(name, "=", value));
  };
  add("requests_per_minute", limits.requests_per_minute);
  add("tokens_per_minute", limits.tokens_per_minute);
  add("sequences", limits.sequences_max);
  if (limits.kv_share > 0) words.push_back(absl::StrCat("kv_share=", limits.kv_share * 100, "%"));
  add("weight", limits.weight > 1 ? limits.weight : 0);
  const router::TenantLimits usual;
  if (limits.priority_min != usual.priority_min || limits.priority_max != usual.priority_max)
    words.push_back(absl::StrCat("priority=", limits.priority_min, "..", limits.priority_max));
  if (!limits.service_tiers.empty())
    words.push_back("service_tiers=" + absl::StrJoin(limits.service_tiers, ","));
  if (!limits.cache_group.empty()) words.push_back("cache=" + limits.cache_group);
  if (limits.is_admin) words.push_back(limits.may_infer ? "scopes=infer,admin" : "scopes=admin");
  return absl::StrJoin(words, " ");
}

// The words of a line of the file, without its comment.
std::vector<std::string> WordsOf(const std::string& line) {
  return absl::StrSplit(line.substr(0, line.find('#')), absl::ByAnyChar(" \t\r"),
                        absl::SkipEmpty());
}

// Appends to `line` those of `settings` that it does not give, in front of its comment.
void GiveSettings(const std::vector<std::string>& settings, std::string& line) {
  const std::vector<std::string> has = WordsOf(line);
  std::string missing;
  for (const std::string& setting : settings) {
    if (std::find(has.begin(), has.end(), setting) == has.end())
      absl::StrAppend(&missing, " ", setting);
  }
  size_t end = std::min(line.find('#'), line.size());
  while (end > 0 && absl::ascii_isspace(static_cast<unsigned char>(line[end - 1]))) --end;
  line.insert(end, missing);
}

class KeysCommand final : public Command {
 public:
  KeysCommand() : schema_("tandem keys", "Adds, lists and revokes API keys.") {
    schema_.Add("file", &file_, "The keys file: what routers get as --api-keys.",
                {.required = true});
    schema_.Add(
        "set", &settings_,
        "With add: settings of the tenant, such as requests_per_minute=60, "
        "tokens_per_minute=N, sequences=N, kv_share=25%, weight=N, priority=MIN..MAX, "
        "service_tiers=NAME,NAME, cache=GROUP, scopes=infer,admin; several are separated by "
        "commas or spaces.");
    schema_.AllowPositionals("add TENANT | list | revoke TENANT-OR-HASH", 2);
  }

  config::Schema& schema() override { return schema_; }

  int Run(const std::vector<std::string>& args, const Environment& env) override {
    std::vector<std::string> words;
    if (auto code = ParseArguments(schema_, args, env, &words)) return *code;
    const std::string verb = words.empty() ? "" : words[0];
    absl::Status status;
    if (verb == "add" && words.size() == 2) {
      status = Add(words[1]);
    } else if (verb == "list" && words.size() == 1) {
      status = List();
    } else if (verb == "revoke" && words.size() == 2) {
      status = Revoke(words[1]);
    } else {
      ReportError(schema_, absl::InvalidArgumentError(
                               "expected add TENANT, list, or revoke TENANT-OR-HASH"));
      return config::kExitUsage;
    }
    return status.ok() ? config::kExitOk : ReportError(schema_, status);
  }

 private:
  absl::StatusOr<router::KeysFile> Parse(const std::string& text) const {
    absl::StatusOr<router::KeysFile> file = router::ParseKeysFile(text, nullptr);
    if (file.ok()) return file;
    return absl::InvalidArgumentError(absl::StrCat(file_, ":", file.status().message()));
  }

  absl::Status Add(const std::string& tenant) const {
    if (const absl::Status name = router::CheckTenantName(tenant); !name.ok())
      return absl::InvalidArgumentError(absl::StrCat("TENANT: ", name.message()));
    ASSIGN_OR_RETURN(const std::string key, NewKey());
    ASSIGN_OR_RETURN(const LockedKeysFile file, LockedKeysFile::Open(file_, /*make=*/true));
    std::string text = file.Read();
    RETURN_IF_ERROR(Parse(text).status());
    if (!text.empty() && text.back() != '\n') text += '\n';
    absl::StrAppend(&text, tenant, " ", router::Sha256Hex(key));
    for (const std::string& given : settings_) {
      for (const absl::string_view one : absl::StrSplit(given, ' ', absl::SkipEmpty()))
        // A comma divides settings, and the scopes of one.
        absl::StrAppend(&text, absl::StrContains(one, '=') ? " " : ",", one);
    }
    text += '\n';
    if (const auto parsed = router::ParseKeysFile(text, nullptr); !parsed.ok()) {
      // The error is of the new line, whose number means nothing to the user.
      const absl::string_view message = parsed.status().message();
      return absl::InvalidArgumentError(
          absl::StrCat("--set ", message.substr(message.find(": ") + 2)));
    }
    std::fprintf(stderr, "The key of %s, which is shown this once:\n", tenant.c_str());
    // First: a line in the file is of no use where its key was not shown.
    if (std::printf("%s\n", key.c_str()) < 0 || std::fflush(stdout) != 0)
      return absl::UnavailableError("the key cannot be shown, so none was added");
    const absl::Status added = file.Replace(text);
    return added.ok() ? added
                      : absl::Status(added.code(),
                                     absl::StrCat(added.message(), "; the key above is not valid"));
  }

  absl::Status List() const {
    ASSIGN_OR_RETURN(const LockedKeysFile locked, LockedKeysFile::Open(file_, /*make=*/false));
    ASSIGN_OR_RETURN(const router::KeysFile file, Parse(locked.Read()));
    std::printf("%-24s %-*s  %s\n", "TENANT", static_cast<int>(kHashPrefix), "HASH", "SETTINGS");
    for (const router::KeysFile::Key& key : file.keys) {
      std::printf("%-24s %s  %s\n", key.tenant.c_str(), key.hash.substr(0, kHashPrefix).c_str(),
                  SettingsOf(file.limits.at(key.tenant)).c_str());
    }
    return absl::OkStatus();
  }

  // Removes the lines of a tenant's keys, or of the key whose hash begins so. Other lines and
  // comments stay as they are, but that a tenant keeps its settings: what a removed line gave moves
  // to the tenant's first line that stays.
  absl::Status Revoke(const std::string& which) const {
    ASSIGN_OR_RETURN(const LockedKeysFile locked, LockedKeysFile::Open(file_, /*make=*/false));
    const std::string text = locked.Read();
    ASSIGN_OR_RETURN(const router::KeysFile file, Parse(text));
    std::vector<std::string> lines = absl::StrSplit(text, '\n');
    const auto goes = [&which](const router::KeysFile::Key& key) {
      return key.tenant == which ||
             (which.size() >= kHashPrefix && absl::StartsWith(key.hash, which));
    };
    size_t removed = 0;
    for (const router::KeysFile::Key& key : file.keys) {
      if (!goes(key)) continue;
      ++removed;
      std::vector<std::string> settings = WordsOf(lines[static_cast<size_t>(key.line) - 1]);
      settings.erase(settings.begin(), settings.begin() + 2);  // the tenant and the hash
      const auto staying = std::find_if(file.keys.begin(), file.keys.end(), [&](const auto& other) {
        return other.tenant == key.tenant && !goes(other);
      });
      if (staying != file.keys.end())
        GiveSettings(settings, lines[static_cast<size_t>(staying->line) - 1]);
    }
    for (auto key = file.keys.rbegin(); key != file.keys.rend(); ++key)
      if (goes(*key)) lines.erase(lines.begin() + key->line - 1);
    if (removed == 0)
      return absl::NotFoundError(absl::StrCat("\"", which, "\" is neither a tenant of ", file_,
                                              " nor the beginning of a hash there (give at least ",
                                              kHashPrefix, " digits)"));
    RETURN_IF_ERROR(locked.Replace(absl::StrJoin(lines, "\n")));
    std::printf("revoked %zu key%s\n", removed, removed == 1 ? "" : "s");
    return absl::OkStatus();
  }

  config::Schema schema_;
  std::string file_;
  std::vector<std::string> settings_;
};

}  // namespace

std::unique_ptr<Command> NewKeysCommand() { return std::make_unique<KeysCommand>(); }

}  // namespace tandem::cli
