"""`polyrhythm doctor`: the command, and how its answer is shown."""

from polyrhythm.cli.doctor.command import DoctorCommand as DoctorCommand
from polyrhythm.cli.doctor.command import doctor as doctor
