#include "cli/pull/pull.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/pull/download.h"
#include "cli/pull/download_progress.h"
#include "cli/pull/file_hash.h"
#include "cli/pull/hugging_face.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kListBytesMax = 16 << 20;
constexpr int64_t kFileBytesMax = int64_t{1} << 43;       // of a file whose size is not known
constexpr int64_t kDiskReserveBytes = int64_t{64} << 20;  // left free

// Held while a model is brought.
class FolderLock {
 public:
  static absl::StatusOr<std::unique_ptr<FolderLock>> Take(const std::string& folder) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) return absl::ErrnoToStatus(error.value(), folder);
    const int fd = open(absl::StrCat(folder, "/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return absl::ErrnoToStatus(errno, folder);
    std::unique_ptr<FolderLock> lock(new FolderLock(fd));
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return lock;
    return absl::FailedPreconditionError(
        absl::StrCat(folder, ": another `tandem pull` is fetching this model"));
  }
  ~FolderLock() { close(fd_); }

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  const int fd_;
};

absl::Status CheckRoom(const std::string& folder, int64_t bytes) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (error || static_cast<int64_t>(space.available) >= bytes + kDiskReserveBytes)
    return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(folder, ": ", BytesText(bytes), " more are needed and ",
                   BytesText(static_cast<int64_t>(space.available)), " are free"));
}

class Puller {
 public:
  Puller(Downloader& downloader, const PullOptions& options, model::StoredModel model)
      : downloader_(downloader), options_(options), model_(std::move(model)) {}

  absl::StatusOr<model::StoredModel> Bring(const std::vector<RepositoryFile>& files) {
    // A whole model stays so until all files that replace some of it have arrived. Without one each
    // file is kept as soon as it has arrived.
    const bool whole = model::ReadManifest(model_.folder).ok();
    model_.files = model::FilesFetched(model_.folder);
    int64_t bytes = 0, here = 0;
    std::vector<const RepositoryFile*> missing;
    for (const RepositoryFile& file : files) {
      bytes += std::max<int64_t>(file.remote.bytes, 0);
      const bool is_here = IsHere(file);
      here += is_here ? file.remote.bytes : PartBytes(file);
      if (!is_here) missing.push_back(&file);
    }
    RETURN_IF_ERROR(CheckRoom(model_.folder, bytes - here));
    if (!whole) RETURN_IF_ERROR(model::WritePartialManifest(model_));
    DownloadProgress progress(bytes, here, options_.progress);
    std::vector<model::StoredFile> arrived;
    for (const RepositoryFile* file : missing) {
      ASSIGN_OR_RETURN(const std::optional<model::StoredFile> stored, Fetch(*file, progress));
      if (!stored.has_value()) continue;
      arrived.push_back(*stored);
      if (whole) continue;
      RETURN_IF_ERROR(Keep(arrived));
      arrived.clear();
    }
    if (!arrived.empty()) RETURN_IF_ERROR(Keep(arrived));
    RETURN_IF_ERROR(RemoveOthers(files));
    RETURN_IF_ERROR(model::WriteManifest(model_));
    RemoveParts();
    return model_;
  }

 private:
  std::string PathOf(absl::string_view name) const {
    return absl::StrCat(model_.folder, "/", name);
  }

  // -1: there is none.
  static int64_t BytesOf(const std::string& path) {
    std::error_code error;
    const auto bytes = fs::file_size(path, error);
    return error ? -1 : static_cast<int64_t>(bytes);
  }

  int64_t PartBytes(const RepositoryFile& file) const {
    return std::max<int64_t>(BytesOf(Downloader::PartOf(PathOf(file.name))), 0);
  }

  // What was fetched under this name; nullptr: nothing.
  model::StoredFile* Find(const std::string& name) {
    const auto found =
        std::find_if(model_.files.begin(), model_.files.end(),
                     [&](const model::StoredFile& stored) { return stored.name == name; });
    return found == model_.files.end() ? nullptr : &*found;
  }

  // What was fetched under this name and still has its size; nullptr: nothing.
  const model::StoredFile* FindUndamaged(const std::string& name) {
    const model::StoredFile* stored = Find(name);
    return stored != nullptr && !stored->sha256.empty() && BytesOf(PathOf(name)) == stored->bytes
               ? stored
               : nullptr;
  }

  // Whether it is here as the list names it.
  bool IsHere(const RepositoryFile& file) {
    const model::StoredFile* stored = FindUndamaged(file.name);
    if (stored == nullptr || stored->bytes != file.remote.bytes) return false;
    if (!file.remote.sha256.empty()) return stored->sha256 == file.remote.sha256;
    if (file.remote.git_blob.empty()) return false;
    // Files without a SHA-256 in the list are small.
    const absl::StatusOr<FileHashes> hashes = HashFile(PathOf(file.name), [] { return true; });
    return hashes.ok() && hashes->git_blob == file.remote.git_blob;
  }

  // Brings the file beside the one of its name. nullopt: the server has the file that is here.
  absl::StatusOr<std::optional<model::StoredFile>> Fetch(const RepositoryFile& file,
                                                         DownloadProgress& progress) {
    const std::string path = PathOf(file.name);
    const int64_t before = PartBytes(file);
    RemoteFile remote = file.remote;
    // A hash tells more than what the server calls the file.
    const model::StoredFile* stored = FindUndamaged(file.name);
    if (stored != nullptr && remote.sha256.empty() && remote.git_blob.empty())
      remote.here = {.etag = stored->etag, .last_modified = stored->last_modified};
    ASSIGN_OR_RETURN(const FetchedFile fetched, downloader_.Fetch(remote, path, [&](int64_t bytes) {
      progress.Show(file.name, bytes - before);
    }));
    if (fetched.unchanged) return std::nullopt;
    const std::string part = Downloader::PartOf(path);
    const int64_t bytes = BytesOf(part);
    if (bytes < 0) return absl::UnavailableError(absl::StrCat(part, ": cannot be read"));
    progress.FileEnds(bytes - before);
    return model::StoredFile{.name = file.name,
                             .bytes = bytes,
                             .sha256 = fetched.sha256,
                             .etag = fetched.version.etag,
                             .last_modified = fetched.version.last_modified};
  }

  // Puts files that have arrived in place of older ones. Meanwhile the model is incomplete.
  absl::Status Keep(const std::vector<model::StoredFile>& arrived) {
    // A new file may be there before the manifest says so.
    for (const model::StoredFile& file : arrived)
      if (model::StoredFile* stale = Find(file.name)) stale->sha256.clear();
    RETURN_IF_ERROR(model::WritePartialManifest(model_));
    for (const model::StoredFile& file : arrived) {
      RETURN_IF_ERROR(Downloader::Install(PathOf(file.name)));
      if (Find(file.name) == nullptr) model_.files.push_back({.name = file.name});
      *Find(file.name) = file;
    }
    return model::WritePartialManifest(model_);
  }

  // Removes what other pulls have brought of files in part.
  void RemoveParts() const {
    std::error_code error;
    std::vector<std::string> parts;
    for (fs::directory_iterator it(model_.folder, error), end; !error && it != end;
         it.increment(error)) {
      // Each part of a Downloader has a version beside it; another file of that name is its
      // owner's.
      if (it->path().extension() == ".part" && fs::exists(it->path().string() + ".etag", error))
        parts.push_back(it->path().stem().string());
    }
    for (const std::string& name : parts) Downloader::Discard(PathOf(name));
  }

  // Removes what was fetched earlier and the repository no longer has: it would be read as a part
  // of the model. A file that was not fetched is its owner's.
  absl::Status RemoveOthers(const std::vector<RepositoryFile>& files) {
    std::vector<model::StoredFile> wanted;
    for (const RepositoryFile& file : files) wanted.push_back(*Find(file.name));
    for (const model::StoredFile& stored : model_.files) {
      const auto same = [&](const model::StoredFile& other) { return other.name == stored.name; };
      if (std::any_of(wanted.begin(), wanted.end(), same)) continue;
      std::error_code error;
      fs::remove(PathOf(stored.name), error);
      if (error)
        return absl::UnavailableError(absl::StrCat(PathOf(stored.name), ": ", error.message()));
    }
    model_.files = std::move(wanted);
    return absl::OkStatus();
  }

  Downloader& downloader_;
  const PullOptions& options_;
  model::StoredModel model_;  // its files: all that were fetched, those of an older commit too
};

}  // namespace

absl::StatusOr<model::StoredModel> PullModel(const std::string& name,
                                             const std::map<std::string, std::string>& env,
                                             const PullOptions& options) {
  ASSIGN_OR_RETURN(const model::ModelName parsed, model::ParseModelName(name));
  model::StoredModel stored{.name = name,
                            .commit = "",
                            .folder = absl::StrCat(model::ModelsFolder(env), "/", parsed.folder()),
                            .files = {}};
  ASSIGN_OR_RETURN(const std::unique_ptr<FolderLock> lock, FolderLock::Take(stored.folder));
  DownloadOptions download;
  download.wait = options.wait;
  download.attempts = static_cast<int>(options.attempts);
  if (options.progress) download.on_retry = [](const Retry& retry) { ShowRetry(retry); };
  if (!parsed.is_repository()) {
    ASSIGN_OR_RETURN(const auto downloader, Downloader::Create(std::move(download)));
    const RepositoryFile file{.name = parsed.file,
                              .remote = {.url = parsed.url, .bytes_max = kFileBytesMax}};
    return Puller(*downloader, options, std::move(stored)).Bring({file});
  }
  ASSIGN_OR_RETURN(const Hub hub, Hub::FromEnvironment(env));
  download.token = hub.token;
  download.token_host = hub.host();
  ASSIGN_OR_RETURN(const auto downloader, Downloader::Create(std::move(download)));
  const absl::StatusOr<std::string> list =
      downloader->FetchText(ListUrl(hub, parsed), kListBytesMax);
  if (list.status().code() == absl::StatusCode::kUnavailable) {
    return absl::UnavailableError(absl::StrCat(
        list.status().message(),
        ". Without a network, copy the model's files (config.json, tokenizer.json, *.safetensors, "
        "or one *.gguf) from another machine to a folder and give its path as --model"));
  }
  RETURN_IF_ERROR(list.status());
  ASSIGN_OR_RETURN(const Repository repository, ChooseFiles(hub, parsed, *list));
  stored.commit = repository.commit;
  return Puller(*downloader, options, std::move(stored)).Bring(repository.files);
}

}  // namespace tandem::cli
