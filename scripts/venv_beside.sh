# Sourced: an environment for one package, which sees what .venv has (our torch above all).
#
#   venv_beside NAME PACKAGE…      makes .venvs/NAME on first use, with these packages and nothing they ask for
#
# Packages that pin another torch would bring gigabytes of CUDA, so all that is needed is named.
export PIP_DISABLE_PIP_VERSION_CHECK=1

venv_beside() {
  local venv=.venvs/$1 place='import sysconfig; print(sysconfig.get_path("purelib"))'
  if [ -e "$venv/.installed" ]; then return; fi
  .venv/bin/python -m venv "$venv"
  .venv/bin/python -c "$place" > "$("$venv/bin/python" -c "$place")/stepwell.pth"
  "$venv/bin/pip" install -q --no-deps "${@:2}"
  touch "$venv/.installed"
}
