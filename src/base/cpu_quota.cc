#include "base/cpu_quota.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace cutaway {
namespace {

std::string read_small_file(const std::string& path) {
  std::string text;
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return text;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, file)) text.append(buffer, n);
  std::fclose(file);
  return text;
}

// 0: no limit, or not a number.
double ratio(const char* quota, const char* period) {
  const double q = std::strtod(quota, nullptr);
  const double p = std::strtod(period, nullptr);
  return q > 0 && p > 0 ? q / p : 0;
}

// "150000 100000" or "max 100000".
double quota_v2(const std::string& group) {
  const std::string text = read_small_file(group + "/cpu.max");
  const size_t space = text.find(' ');
  if (space == std::string::npos) return 0;
  return ratio(text.substr(0, space).c_str(), text.c_str() + space + 1);
}

// −1 in cpu.cfs_quota_us: no limit.
double quota_v1(const std::string& group) {
  return ratio(read_small_file(group + "/cpu.cfs_quota_us").c_str(),
               read_small_file(group + "/cpu.cfs_period_us").c_str());
}

// A group's limit holds for all below it. Inside a container the path may name a group of the host
// that is not there: then only the mount's own top counts, which is the container's group.
double tightest(const std::string& mount, std::string path, double (*quota)(const std::string&)) {
  double least = 0;
  for (;;) {
    const double here = quota(mount + path);
    if (here > 0 && (least == 0 || here < least)) least = here;
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos || path.empty()) return least;
    path.resize(slash);
  }
}

bool has_cpu_controller(std::string_view controllers) {
  while (!controllers.empty()) {
    const size_t comma = controllers.find(',');
    if (controllers.substr(0, comma) == "cpu") return true;
    if (comma == std::string_view::npos) break;
    controllers.remove_prefix(comma + 1);
  }
  return false;
}

}  // namespace

double cgroup_cpu_quota(const std::string& root) {
  const std::string groups = read_small_file(root + "/proc/self/cgroup");
  const std::string mount = root + "/sys/fs/cgroup";
  double least = 0;
  // Lines are "id:controllers:path"; v2's is "0::path".
  for (size_t begin = 0; begin < groups.size();) {
    size_t end = groups.find('\n', begin);
    if (end == std::string::npos) end = groups.size();
    const std::string line = groups.substr(begin, end - begin);
    begin = end + 1;
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    double quota = 0;
    if (controllers.empty()) {
      quota = tightest(mount, path, quota_v2);
    } else if (has_cpu_controller(controllers)) {
      quota = tightest(mount + "/" + controllers, path, quota_v1);
      if (quota == 0) quota = tightest(mount + "/cpu", path, quota_v1);
    }
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
  }
  return least;
}

}  // namespace cutaway
