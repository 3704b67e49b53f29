#include <troupe/runtime/keys.hpp>

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <memory>
#include <optional>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace troupe::runtime {

namespace {

namespace fs = std::filesystem;

template <auto Free>
struct freed_by {
  template <class T>
  void operator()(T* x) const {
    Free(x);
  }
};

using key_ptr = std::unique_ptr<EVP_PKEY, freed_by<EVP_PKEY_free>>;
using certificate_ptr = std::unique_ptr<X509, freed_by<X509_free>>;
using bio_ptr = std::unique_ptr<BIO, freed_by<BIO_free>>;
using number_ptr = std::unique_ptr<BIGNUM, freed_by<BN_free>>;
using extension_ptr = std::unique_ptr<X509_EXTENSION, freed_by<X509_EXTENSION_free>>;

constexpr long seconds_a_day = 24 * 60 * 60;
constexpr int valid_days = 3650;

/// Hosts whose clocks are behind ours accept a new certificate all the same.
constexpr int backdated_days = 1;

constexpr auto setup_advice =
    "run `troupe certs init` once for the cluster and `troupe certs issue HOST` for each host";

/// What OpenSSL says about its last failure; empties its list.
error openssl_error(std::string_view what) {
  std::array<char, 256> text{};
  if (auto code = ERR_get_error(); code != 0)
    ERR_error_string_n(code, text.data(), text.size());
  ERR_clear_error();
  return {errc::internal, std::string{what} + ": OpenSSL failed: " + text.data()};
}

tl::unexpected<error> refuse(const fs::path& path, std::string_view why, std::string_view advice) {
  return fail(errc::not_authenticated, path.string() + " " + std::string{why} + "; " + std::string{advice});
}

// -- hosts

struct host_name {
  /// As files are named after it: lower case, addresses in their shortest form.
  std::string text;
  bool is_address = false;
};

/// The canonical form of an address of either family, or nothing.
template <int Family>
std::optional<std::string> canonical_address(const std::string& text) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  std::array<char, INET6_ADDRSTRLEN> result{};
  if (inet_pton(Family, text.c_str(), address.data()) != 1)
    return std::nullopt;
  inet_ntop(Family, address.data(), result.data(), result.size());
  return result.data();
}

std::string without_brackets(std::string_view host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  return std::string{host};
}

/// The name becomes a file name and a part of a certificate, so nothing else than a host may pass.
expected<host_name> parse_host(std::string_view host) {
  auto text = without_brackets(host);
  if (auto address = canonical_address<AF_INET>(text))
    return host_name{*address, true};
  if (auto address = canonical_address<AF_INET6>(text))
    return host_name{*address, true};
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  auto allowed = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '.' || c == '_'; };
  if (text.empty() || text.size() > 253 || !std::ranges::all_of(text, allowed) || text.front() == '.' ||
      text.front() == '-')
    return fail(errc::invalid_argument,
                "'" + std::string{host} + "' is no host name or address: give one as other hosts reach it");
  if (text == "ca")
    return fail(errc::invalid_argument,
                "the name 'ca' stands for the cluster's authority: give this host's full name or address");
  return host_name{text, false};
}

bool is_any_address(std::string_view host) {
  return host.empty() || host == "0.0.0.0" || host == "::" || host == "[::]" || host == "*";
}

std::string this_host() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0)
    return "localhost";
  return name.data();
}

// -- making keys and certificates

struct signing_authority {
  key_ptr key;
  certificate_ptr certificate;
};

enum class certificate_kind { authority, leaf };

bool add_extension(X509* certificate, X509* issuer, int id, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  extension_ptr extension{X509V3_EXT_conf_nid(nullptr, &context, id, value)};
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool set_random_serial(X509* certificate) {
  number_ptr number{BN_new()};
  // 159 bits with the highest one set: positive, and within the 20 bytes that RFC 5280 allows.
  return number && BN_rand(number.get(), 159, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool set_name(X509* certificate, std::string_view name) {
  // X.509 allows 64 characters here; what counts is the alternative name.
  auto text = std::string{name.substr(0, 64)};
  return X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()),
                                    -1, 0) == 1;
}

bool set_validity(X509* certificate) {
  return X509_gmtime_adj(X509_getm_notBefore(certificate), -backdated_days * seconds_a_day) != nullptr &&
         X509_gmtime_adj(X509_getm_notAfter(certificate), valid_days * seconds_a_day) != nullptr;
}

bool set_extensions(X509* certificate, X509* issuer, certificate_kind kind, const std::string& alternative_names) {
  auto add = [&](int id, const char* value) { return add_extension(certificate, issuer, id, value); };
  if (kind == certificate_kind::authority)
    return add(NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
           add(NID_key_usage, "critical,keyCertSign,cRLSign") && add(NID_subject_key_identifier, "hash");
  return add(NID_basic_constraints, "critical,CA:FALSE") && add(NID_key_usage, "critical,digitalSignature") &&
         add(NID_ext_key_usage, "serverAuth,clientAuth") && add(NID_subject_key_identifier, "hash") &&
         add(NID_authority_key_identifier, "keyid") && add(NID_subject_alt_name, alternative_names.c_str());
}

/// `issuer` is null for a certificate that signs itself.
expected<certificate_ptr> make_certificate(EVP_PKEY* key, const signing_authority* issuer, std::string_view name,
                                           const std::string& alternative_names) {
  certificate_ptr result{X509_new()};
  auto* issuer_certificate = issuer ? issuer->certificate.get() : result.get();
  auto* issuer_key = issuer ? issuer->key.get() : key;
  auto kind = issuer ? certificate_kind::leaf : certificate_kind::authority;
  constexpr long version_3 = 2;
  if (!result || X509_set_version(result.get(), version_3) != 1 || !set_random_serial(result.get()) ||
      !set_name(result.get(), name) ||
      X509_set_issuer_name(result.get(), X509_get_subject_name(issuer_certificate)) != 1 ||
      !set_validity(result.get()) || X509_set_pubkey(result.get(), key) != 1 ||
      !set_extensions(result.get(), issuer_certificate, kind, alternative_names) ||
      X509_sign(result.get(), issuer_key, EVP_sha256()) == 0)
    return fail(openssl_error("cannot make the certificate of " + std::string{name}));
  return result;
}

expected<key_ptr> make_key() {
  key_ptr key{EVP_EC_gen("P-256")};
  if (!key)
    return fail(openssl_error("cannot make a key"));
  return key;
}

/// Each authority has a name of its own, so that a certificate of another one is recognised as such.
expected<signing_authority> make_authority(const std::string& name) {
  std::uint32_t number = 0;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(&number), sizeof(number)) != 1)
    return fail(openssl_error("cannot make a random number"));
  auto key = make_key();
  if (!key)
    return fail(std::move(key.error()));
  auto certificate = make_certificate(key->get(), nullptr, name + " " + std::to_string(number), {});
  if (!certificate)
    return fail(std::move(certificate.error()));
  return signing_authority{std::move(*key), std::move(*certificate)};
}

// -- files

/// Writes a new file through `write_pem` and makes it durable; removes what it could not finish.
template <class Write>
expected<void> write_new_file(const fs::path& path, mode_t mode, Write write_pem) {
  int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0)
    return fail(system_error(path.string()));
  bio_ptr file{BIO_new_fd(fd, BIO_CLOSE)};
  auto written = file && write_pem(file.get()) == 1 && fchmod(fd, mode) == 0 && fsync(fd) == 0;
  if (written)
    return {};
  auto reason = system_error(path.string());
  ERR_clear_error();
  unlink(path.c_str());
  return fail(std::move(reason));
}

expected<void> write_key(const fs::path& path, EVP_PKEY* key) {
  return write_new_file(path, 0600, [key](BIO* file) {
    return PEM_write_bio_PKCS8PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
}

expected<void> write_certificate(const fs::path& path, X509* certificate) {
  return write_new_file(path, 0644, [certificate](BIO* file) { return PEM_write_bio_X509(file, certificate); });
}

void sync_directory(const fs::path& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0)
    return;
  fsync(fd);
  close(fd);
}

/// Holds one directory for one process at a time. Where the file system knows no locks, it does nothing: making keys
/// for the first time is safe without.
class directory_lock {
 public:
  explicit directory_lock(const fs::path& path) : fd_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    while (fd_ >= 0 && flock(fd_, LOCK_EX) != 0 && errno == EINTR)
      ;
  }
  directory_lock(const directory_lock&) = delete;
  directory_lock& operator=(const directory_lock&) = delete;
  ~directory_lock() {
    if (fd_ >= 0)
      close(fd_);
  }

 private:
  int fd_;
};

/// Nobody else may put files into a directory of keys.
expected<void> check_directory(const fs::path& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0)
    return fail(system_error(path.string()));
  if (!S_ISDIR(status.st_mode))
    return refuse(path, "is not a directory", "remove it, or name another directory in TROUPE_KEYS");
  if (status.st_uid != geteuid() && status.st_uid != 0)
    return refuse(path, "belongs to another user", "use a directory of your own (TROUPE_KEYS)");
  if ((status.st_mode & 022) != 0)
    return refuse(path, "can be written by others", "chmod 700 " + path.string());
  return {};
}

/// Makes the directory of keys, private from the start, and checks one that is there.
expected<void> ensure_directory(const fs::path& path) {
  std::error_code code;
  if (path.has_parent_path() && !fs::exists(path, code))
    fs::create_directories(path.parent_path(), code);
  if (code)
    return fail(errc::io_error, path.string() + ": " + code.message() + "; name another directory in TROUPE_KEYS");
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return fail(system_error(path.string()));
  return check_directory(path);
}

/// A new directory beside the place where its content is to appear; removed with all its files unless it moved there.
class staging_directory {
 public:
  [[nodiscard]] static expected<staging_directory> make(const fs::path& parent) {
    auto path = (parent / ".new-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr)
      return fail(system_error(path));
    return staging_directory{path};
  }
  staging_directory(staging_directory&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  staging_directory& operator=(staging_directory&&) = delete;
  ~staging_directory() {
    std::error_code ignored;
    if (!path_.empty())
      fs::remove_all(path_, ignored);
  }

  [[nodiscard]] const fs::path& path() const noexcept { return path_; }

  /// Moves it to a place where nothing is. False when somebody else was faster.
  [[nodiscard]] expected<bool> move_to(const fs::path& target) {
    sync_directory(path_);
    if (rename(path_.c_str(), target.c_str()) != 0) {
      if (errno == EEXIST || errno == ENOTEMPTY)
        return false;
      return fail(system_error(target.string()));
    }
    path_.clear();
    sync_directory(target.parent_path());
    return true;
  }

  /// Puts it in the place of `target`, and takes that over to be removed.
  [[nodiscard]] expected<void> replace(const fs::path& target) {
    sync_directory(path_);
    if (renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) != 0 &&
        !swap_in_two_steps(target))
      return fail(system_error(target.string()));
    sync_directory(target.parent_path());
    return {};
  }

 private:
  explicit staging_directory(fs::path path) : path_(std::move(path)) {}

  /// For file systems that cannot exchange two names, as NFS.
  bool swap_in_two_steps(const fs::path& target) {
    auto aside = path_;
    aside += ".old";
    if (rename(target.c_str(), aside.c_str()) != 0 || rename(path_.c_str(), target.c_str()) != 0)
      return false;
    path_ = std::move(aside);
    return true;
  }

  fs::path path_;
};

// -- reading and checking

enum class secrecy { secret, open };

/// Opens a file that belongs to us and that others cannot change, nor read when it is secret. What is checked is what
/// is read.
expected<bio_ptr> open_checked(const fs::path& path, secrecy wanted) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return fail(system_error(path.string()));
  bio_ptr file{BIO_new_fd(fd, BIO_CLOSE)};
  struct stat status {};
  if (!file || fstat(fd, &status) != 0)
    return fail(system_error(path.string()));
  if (!S_ISREG(status.st_mode))
    return refuse(path, "is not a file", "put the PEM file there");
  auto may_be_roots = wanted == secrecy::open && status.st_uid == 0;
  if (status.st_uid != geteuid() && !may_be_roots)
    return refuse(path, "belongs to another user", "make it yours (chown), or use keys of your own (TROUPE_KEYS)");
  if (wanted == secrecy::secret && (status.st_mode & 0177) != 0)
    return refuse(path, "can be used by others, so it may be known to them",
                  "make new keys, or chmod 600 " + path.string());
  if ((status.st_mode & 022) != 0)
    return refuse(path, "can be written by others", "check it, then chmod 644 " + path.string());
  return file;
}

constexpr auto damaged_advice = "replace it by the file that was made for this host";

int no_password(char*, int, int, void*) {
  return 0;
}

expected<key_ptr> read_key(const fs::path& path) {
  auto file = open_checked(path, secrecy::secret);
  if (!file)
    return fail(std::move(file.error()));
  key_ptr key{PEM_read_bio_PrivateKey(file->get(), nullptr, no_password, nullptr)};
  ERR_clear_error();
  if (!key)
    return refuse(path, "holds no private key in PEM format", damaged_advice);
  return key;
}

expected<certificate_ptr> read_certificate(const fs::path& path) {
  auto file = open_checked(path, secrecy::open);
  if (!file)
    return fail(std::move(file.error()));
  certificate_ptr certificate{PEM_read_bio_X509(file->get(), nullptr, no_password, nullptr)};
  ERR_clear_error();
  if (!certificate)
    return refuse(path, "holds no certificate in PEM format", damaged_advice);
  return certificate;
}

enum class validity { valid, expired };

/// An expired certificate is not an error yet: ours for loopback are made anew.
expected<validity> check_dates(const fs::path& path, const X509* certificate) {
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0)
    return refuse(path, "is not valid yet", "check this machine's clock");
  return X509_cmp_current_time(X509_get0_notAfter(certificate)) > 0 ? validity::valid : validity::expired;
}

bool fits(X509* certificate, EVP_PKEY* key) {
  auto result = X509_check_private_key(certificate, key) == 1;
  ERR_clear_error();
  return result;
}

bool is_signed_by(X509* certificate, X509* authority) {
  auto result = X509_check_issued(authority, certificate) == X509_V_OK &&
                X509_verify(certificate, X509_get0_pubkey(authority)) == 1;
  ERR_clear_error();
  return result;
}

/// Three files as they should be, apart from their dates.
expected<validity> check_files(const tls_files& files, std::string_view advice) {
  auto key = read_key(files.key);
  if (!key)
    return fail(std::move(key.error()));
  auto certificate = read_certificate(files.certificate);
  if (!certificate)
    return fail(std::move(certificate.error()));
  auto authority = read_certificate(files.ca);
  if (!authority)
    return fail(std::move(authority.error()));
  if (!fits(certificate->get(), key->get()))
    return refuse(files.certificate, "does not belong to the key " + files.key.string(), advice);
  if (!is_signed_by(certificate->get(), authority->get()))
    return refuse(files.certificate, "is not signed by the authority " + files.ca.string(), advice);
  auto own = check_dates(files.certificate, certificate->get());
  auto its = check_dates(files.ca, authority->get());
  if (!own)
    return own;
  if (!its)
    return its;
  return *own == validity::valid ? *its : validity::expired;
}

// -- loopback

tls_files loopback_files(const fs::path& directory) {
  return {directory / "loopback.pem", directory / "loopback.key", directory / "ca.pem"};
}

expected<void> write_loopback_keys(const fs::path& directory) {
  auto authority = make_authority("Troupe loopback authority");
  if (!authority)
    return fail(std::move(authority.error()));
  auto key = make_key();
  if (!key)
    return fail(std::move(key.error()));
  auto certificate = make_certificate(key->get(), &*authority, "localhost", "DNS:localhost,IP:127.0.0.1,IP:::1");
  if (!certificate)
    return fail(std::move(certificate.error()));
  auto files = loopback_files(directory);
  return write_key(files.key, key->get())
      .and_then([&] { return write_certificate(files.certificate, certificate->get()); })
      .and_then([&] { return write_certificate(files.ca, authority->certificate.get()); });
}

/// What is there now, if anything is.
expected<std::optional<validity>> check_loopback_keys(const fs::path& directory) {
  struct stat status {};
  if (lstat(directory.c_str(), &status) != 0 && errno == ENOENT)
    return std::optional<validity>{};
  if (auto checked = check_directory(directory); !checked)
    return fail(std::move(checked.error()));
  auto advice = "remove the directory " + directory.string() + " and they are made anew";
  auto result = check_files(loopback_files(directory), advice);
  if (!result) {
    auto reason = std::move(result.error());
    if (reason.message.find(advice) == std::string::npos)
      reason.message += ", or " + advice;
    return fail(std::move(reason));
  }
  return *result;
}

/// Makes new keys, or finds that another process just has.
expected<void> make_loopback_keys(const fs::path& parent, const fs::path& directory) {
  directory_lock lock{parent};
  auto present = check_loopback_keys(directory);
  if (!present)
    return fail(std::move(present.error()));
  if (*present == validity::valid)
    return {};
  auto staging = staging_directory::make(parent);
  if (!staging)
    return fail(std::move(staging.error()));
  if (auto written = write_loopback_keys(staging->path()); !written)
    return written;
  if (*present == validity::expired)
    return staging->replace(directory);
  auto moved = staging->move_to(directory);
  if (!moved)
    return fail(std::move(moved.error()));
  return {};
}

// -- cluster

fs::path cluster_directory(const fs::path& directory) {
  return directory / "cluster";
}

tls_files cluster_files(const fs::path& directory, const host_name& host) {
  auto place = cluster_directory(directory);
  return {place / (host.text + ".pem"), place / (host.text + ".key"), place / "ca.pem"};
}

fs::path authority_key(const fs::path& directory) {
  return cluster_directory(directory) / "ca.key";
}

bool is_present(const fs::path& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0;
}

expected<signing_authority> read_authority(const fs::path& directory) {
  auto certificate_path = cluster_directory(directory) / "ca.pem";
  auto key_path = authority_key(directory);
  if (!is_present(certificate_path))
    return fail(errc::not_found,
                certificate_path.string() + ": no authority; run `troupe certs init` once for the cluster");
  if (!is_present(key_path))
    return fail(errc::not_found, key_path.string() + ": the authority's key is not on this host; run `troupe certs "
                                                     "issue` on the host where `troupe certs init` was run");
  auto key = read_key(key_path);
  if (!key)
    return fail(std::move(key.error()));
  auto certificate = read_certificate(certificate_path);
  if (!certificate)
    return fail(std::move(certificate.error()));
  if (!fits(certificate->get(), key->get()))
    return refuse(certificate_path, "does not belong to the key " + key_path.string(),
                  "restore the pair that `troupe certs init` made");
  auto dates = check_dates(certificate_path, certificate->get());
  if (!dates)
    return fail(std::move(dates.error()));
  if (*dates == validity::expired)
    return refuse(certificate_path, "has expired", "remove its directory, then " + std::string{setup_advice});
  return signing_authority{std::move(*key), std::move(*certificate)};
}

/// Both files or none, whatever happens; a name that is taken stays as it is.
expected<void> publish_pair(const tls_files& files, EVP_PKEY* key, X509* certificate) {
  auto staging = staging_directory::make(files.key.parent_path());
  if (!staging)
    return fail(std::move(staging.error()));
  auto staged_key = staging->path() / "key";
  auto staged_certificate = staging->path() / "certificate";
  auto written =
      write_key(staged_key, key).and_then([&] { return write_certificate(staged_certificate, certificate); });
  if (!written)
    return written;
  if (link(staged_key.c_str(), files.key.c_str()) != 0)
    return fail(system_error(files.key.string()));
  if (link(staged_certificate.c_str(), files.certificate.c_str()) != 0) {
    auto reason = system_error(files.certificate.string());
    unlink(files.key.c_str());
    return fail(std::move(reason));
  }
  sync_directory(files.key.parent_path());
  return {};
}

} // namespace

fs::path default_key_directory() {
  auto variable = [](const char* name) -> std::string_view {
    const auto* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (auto keys = variable("TROUPE_KEYS"); !keys.empty())
    return keys;
  // The XDG specification wants relative paths ignored.
  if (auto config = variable("XDG_CONFIG_HOME"); config.starts_with('/'))
    return fs::path{config} / "troupe" / "keys";
  std::string home{variable("HOME")};
  if (home.empty())
    if (const auto* user = getpwuid(geteuid()); user != nullptr)
      home = user->pw_dir;
  return fs::path{home} / ".config" / "troupe" / "keys";
}

bool is_loopback(std::string_view host) {
  auto text = without_brackets(host);
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1)
    return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6{};
  if (inet_pton(AF_INET6, text.c_str(), &v6) == 1)
    return IN6_IS_ADDR_LOOPBACK(&v6);
  constexpr std::string_view name = "localhost";
  return std::ranges::equal(text, name, [](unsigned char a, char b) { return std::tolower(a) == b; });
}

expected<tls_files> loopback_keys(const fs::path& directory) {
  auto place = directory / "loopback";
  auto present = check_loopback_keys(place);
  if (!present)
    return fail(std::move(present.error()));
  if (*present != validity::valid) {
    auto made = ensure_directory(directory).and_then([&] { return make_loopback_keys(directory, place); });
    if (!made)
      return fail(std::move(made.error()));
  }
  return loopback_files(place);
}

expected<void> init_cluster_ca(const fs::path& directory) {
  if (auto ready = ensure_directory(directory); !ready)
    return ready;
  auto place = cluster_directory(directory);
  auto taken = [&place] {
    return fail(errc::already_exists,
                place.string() +
                    " holds cluster keys already; remove it to start over, and issue all hosts' certificates anew");
  };
  std::error_code ignored;
  if (is_present(place) && !fs::is_empty(place, ignored))
    return taken();
  auto staging = staging_directory::make(directory);
  if (!staging)
    return fail(std::move(staging.error()));
  auto authority = make_authority("Troupe cluster authority");
  if (!authority)
    return fail(std::move(authority.error()));
  auto written = write_key(staging->path() / "ca.key", authority->key.get()).and_then([&] {
    return write_certificate(staging->path() / "ca.pem", authority->certificate.get());
  });
  if (!written)
    return written;
  auto moved = staging->move_to(place);
  if (!moved)
    return fail(std::move(moved.error()));
  if (!*moved)
    return taken();
  return {};
}

expected<tls_files> issue_certificate(const fs::path& directory, std::string_view host) {
  auto name = parse_host(host);
  if (!name)
    return fail(std::move(name.error()));
  auto authority = read_authority(directory);
  if (!authority)
    return fail(std::move(authority.error()));
  auto files = cluster_files(directory, *name);
  for (const auto& path : {files.certificate, files.key})
    if (is_present(path))
      return fail(errc::already_exists,
                  path.string() + " exists; remove it and its pair to issue the certificate anew");
  auto key = make_key();
  if (!key)
    return fail(std::move(key.error()));
  auto certificate =
      make_certificate(key->get(), &*authority, name->text, (name->is_address ? "IP:" : "DNS:") + name->text);
  if (!certificate)
    return fail(std::move(certificate.error()));
  if (auto published = publish_pair(files, key->get(), certificate->get()); !published)
    return fail(std::move(published.error()));
  return files;
}

expected<tls_files> cluster_keys(const fs::path& directory, std::string_view host) {
  auto name = parse_host(is_any_address(host) ? this_host() : std::string{host});
  if (!name)
    return fail(std::move(name.error()));
  auto files = cluster_files(directory, *name);
  for (const auto& path : {files.certificate, files.key, files.ca})
    if (!is_present(path))
      return fail(errc::not_found, path.string() +
                                       ": no such file, so this host has no cluster keys; run `troupe certs init` once "
                                       "for the cluster and `troupe certs issue " +
                                       name->text + "` there, then copy " + name->text + ".pem, " + name->text +
                                       ".key and ca.pem to " + cluster_directory(directory).string() + " on this host");
  if (auto checked = check_directory(cluster_directory(directory)); !checked)
    return fail(std::move(checked.error()));
  auto result = check_files(files, setup_advice);
  if (!result)
    return fail(std::move(result.error()));
  if (*result == validity::expired)
    return refuse(files.certificate, "or its authority has expired",
                  "remove it and its key, and run `troupe certs issue " + name->text + "` again");
  return files;
}

} // namespace troupe::runtime
