from penstock import spark as spark
from penstock.client import connect as connect

__version__: str
